"""Where a sweep enters: by its executor, or with a measure that is handed in; and what executors have in
common, one worker's part and the whole made of the parts of several."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from quantkv.errors import QuantKVError
from quantkv.rows.claims import prepare_folder
from quantkv.sweep.answers import Tried
from quantkv.sweep.config import Sweep
from quantkv.sweep.runner import Measure, work
from quantkv.sweep.summary import Summary, together
from quantkv.wording.escapes import one_line
from quantkv.wording.streams import print_line


def run_sweep(sweep: Sweep, *, measure: Measure | None = None, console: Console | None = None) -> Summary:
    """Measure every cell of the sweep that has no finished row yet.

    Without a ``measure`` the sweep's executor says where: in worker processes of this machine, or by others.
    Limits on time hold where cells are measured in processes of their own.
    """
    console = console or Console()
    out = prepare_folder(sweep.run.out)
    if measure is not None:
        return work(sweep, Tried(out), measure, console)
    if sweep.run.executor == "local":
        return share(sweep, Tried(out), console)
    executor = import_module(f"quantkv.sweep.executors.{sweep.run.executor}")
    summary: Summary = executor.run(sweep, console)
    return summary


def needed(package: str, extra: str) -> Any:
    """A package of an extra; QuantKVError with the command that installs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise QuantKVError(
            f"executor {extra} needs the package {package} ({error}): pip install 'quantkv[{extra}]'"
        ) from None


def apart(sweep: Sweep) -> Sweep:
    """The sweep as each worker runs it, with folders that mean the same from anywhere."""
    out = str(Path(sweep.run.out).resolve())
    return sweep.model_copy(update={"run": sweep.run.model_copy(update={"executor": "local", "out": out})})


def share(sweep: Sweep, tried: Tried, console: Console | None = None) -> Summary:
    """One worker's part. Without a console, as in a process of its own, its log goes to standard error."""
    from quantkv.sweep.process import ProcessMeasure

    console = console or Console(width=200, force_terminal=False, stderr=True)
    return work(sweep, tried, ProcessMeasure(), console)


def whole(
    sweep: Sweep, parts: Sequence[Summary], lost: Sequence[str], console: Console, *, worker: str, end: str
) -> Summary:
    """The summary of all workers, after a note for each that ``end`` (as in "was lost") befell."""
    for error in lost:
        print_line(f"note a {worker} {end}: {one_line(error)}", console)
    if not parts:
        raise QuantKVError(f"no {worker} came to an end: {lost[0]}; finished cells are kept")
    return together(Path(sweep.run.out), parts)
