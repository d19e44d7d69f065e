"""Where a sweep enters: by its executor, or with a measure that is handed in."""

from __future__ import annotations

from importlib import import_module

from rich.console import Console

from quantkv.rows.claims import prepare_folder
from quantkv.sweep.config import Sweep
from quantkv.sweep.runner import work
from quantkv.sweep.session import Measure
from quantkv.sweep.summary import Summary
from quantkv.sweep.tried import Tried


def run_sweep(sweep: Sweep, *, measure: Measure | None = None, console: Console | None = None) -> Summary:
    """Measure every cell of the sweep that has no finished row yet.

    Without a ``measure`` the sweep's executor says where: in worker processes of this machine, or by others.
    Limits on time hold where cells are measured in processes of their own.
    """
    console = console or Console()
    out = prepare_folder(sweep.run.out)
    if measure is not None:
        return work(sweep, Tried(out), measure, console)
    executor = import_module(f"quantkv.sweep.executors.{sweep.run.executor}")
    summary: Summary = executor.run(sweep, console)
    return summary
