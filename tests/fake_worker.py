"""A fake measure for worker processes: what happens to a cell is in the name of its format.

Every cell that is begun is appended to the file named by FAKE_LOG, with the process that began it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from fake_measure import FakeMeasure, FakeSession

from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep

FOREVER = 600
ALLOCATION = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


def note(text: str) -> None:
    if "FAKE_LOG" in os.environ:
        with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {text}\n")


def act(cell: Cell) -> None:
    note(f"{cell.kind} {cell.label} {cell.context}")
    time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
    if cell.label == "hungry":
        raise RuntimeError(ALLOCATION)
    if cell.label == "greedy":
        raise MemoryError
    if cell.label == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.label == "crashing":
        ctypes.string_at(0)
    if cell.label == "leaving":
        os._exit(7)
    if cell.label == "hanging":
        ctypes.PyDLL(None).sleep(FOREVER)  # keeps the interpreter's lock, as native code can
    if cell.label == "broken":
        raise ArithmeticError("broke")


class Telling(FakeSession):
    """Says which arm is running, as quality does."""

    def measure(self, cells, on_arm, step) -> None:  # type: ignore[no-untyped-def]
        """Steps of speed name no arm, memory takes none."""

        def begin(cell: Cell) -> None:
            if cell.kind != "memory":
                step("decode" if cell.kind == "speed" else cell.label, 0, 1)
            act(cell)

        self.fake.on_cell = begin
        super().measure(cells, on_arm, step)


class Measure(FakeMeasure):
    def __init__(self) -> None:
        super().__init__(unsupported="impossible")

    def open(self, model: ModelEntry, sweep: Sweep) -> FakeSession:
        note(f"open {model.id}")
        if model.id.startswith("too-large"):
            raise MemoryError("no room for the weights")
        return Telling(self, model)


class Lost(FakeMeasure):
    """Dies before it has looked at anything."""

    def preflight(self, sweep: Sweep) -> None:
        os._exit(9)
