"""A sweep by one worker on this machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from quantkv.sweep.config import Sweep
from quantkv.sweep.executors.shared import share
from quantkv.sweep.summary import Summary
from quantkv.sweep.tried import Tried


def run(sweep: Sweep, console: Console) -> Summary:
    return share(sweep, Tried(Path(sweep.run.out)), console)
