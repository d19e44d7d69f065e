"""What can go wrong with a cell, in one line, and what follows where it was for want of memory."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from quantkv.errors import QuantKVError
from quantkv.rows.cell import Cell
from quantkv.wording.escapes import one_line

OUT_OF_MEMORY = "out of memory"
_WORDS = re.compile(
    r"\bMemoryError\b|OutOfMemoryError|out of memory|can't allocate memory|cannot allocate memory"
    r"|not enough memory|bad_alloc|DefaultCPUAllocator",
    re.IGNORECASE,
)
VMSTAT = Path("/proc/vmstat")


class MeasureError(Exception):
    """An exception of a measurement in another process; its text is the whole reason."""


class BrokenOff(Exception):
    """A measurement that was broken off. `label` is the arm that was running, None where it is not known, and
    `seconds` are what that arm, or all of them, had taken."""

    def __init__(self, reason: str, label: str | None = None, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.label, self.seconds = label, seconds


class CellTimeout(BrokenOff):
    """A cell ran longer than ``run.cell_timeout``; its process was killed."""


class WorkerLost(BrokenOff):
    """The process that measured is gone."""


def describe(error: BaseException) -> str:
    """One line; the kind of error too when it is not one of ours."""
    text = str(error)
    if not isinstance(error, QuantKVError | BrokenOff | MeasureError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return reason(text)


def reason(text: str) -> str:
    """``text`` in a line that any terminal can show, opened by "out of memory" where that is what it says."""
    text = one_line(text)
    if text.startswith(OUT_OF_MEMORY) or not _WORDS.search(text):
        return text
    return f"{OUT_OF_MEMORY} ({text})"


def ran_out_of_memory(text: str | None) -> bool:
    return (text or "").startswith(OUT_OF_MEMORY)


def end_of_process(code: int, *, reclaimed: bool) -> str:
    """Why a worker is gone, from its exit code; `reclaimed` if the system has killed for memory meanwhile."""
    if code >= 0:
        return f"the worker ended with exit code {code}"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else "unknown"
    killed = f"the worker was killed by signal {-code} ({name})"
    return f"{OUT_OF_MEMORY} ({killed})" if reclaimed and -code == signal.SIGKILL else killed


def memory_kills() -> int:
    """How many processes the system has killed to get memory back so far; 0 where it does not say."""
    lines = VMSTAT.read_text().splitlines() if VMSTAT.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


class Limits:
    """Cells that ran out of memory, by model, format and kind: the same at a larger context is not tried."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str, str], list[Cell]] = {}

    def learn(self, cell: Cell, reason: str) -> None:
        if ran_out_of_memory(reason):
            self._failed.setdefault(_arm(cell), []).append(cell)

    def why_not(self, cell: Cell) -> str | None:
        """Which smaller cell of the same arm, in a batch no larger, ran out of memory; None when none did."""
        smaller = (
            known
            for known in self._failed.get(_arm(cell), [])
            if known.context < cell.context and known.batch <= cell.batch
        )
        known = next(smaller, None)
        return None if known is None else f"out of memory at a smaller context already: {known.title}"


def _arm(cell: Cell) -> tuple[str, str, str]:
    return cell.model.model_dump_json(), cell.spec_string, cell.kind
