"""Where the workers of a sweep run. All of them work off one grid into one folder; claims there are all that
they share, so any of them may come late or be lost."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError

if TYPE_CHECKING:
    from rich.console import Console

    from quantkv.sweep.config import Sweep
    from quantkv.sweep.runner import Tried
    from quantkv.sweep.summary import Summary


def executor(name: str) -> Callable[[Sweep, Console], Summary]:
    return import_module(f"{__name__}.{name}").run


def needed(package: str, extra: str) -> Any:
    """A package of an extra; QuantKVError with the command that installs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise QuantKVError(
            f"executor {extra} needs the package {package} ({error}): pip install 'quantkv[{extra}]'"
        ) from None


def share(sweep: Sweep, tried: Tried) -> Summary:
    """One worker's part, in its own process; its log goes to standard error."""
    from rich.console import Console

    from quantkv.sweep.runner import work

    return work(sweep, tried, console=Console(width=200, force_terminal=False, stderr=True))


def apart(sweep: Sweep) -> Sweep:
    """The sweep as each worker runs it, with folders that mean the same from anywhere."""
    from pathlib import Path

    out = str(Path(sweep.run.out).resolve())
    return sweep.model_copy(update={"run": sweep.run.model_copy(update={"executor": "local", "out": out})})
