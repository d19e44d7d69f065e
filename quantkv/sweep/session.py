"""What measures cells, as a sweep sees it: one loaded model at a time, here, in another process or a fake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from quantkv.rows.files import Row
from quantkv.sweep.config import ModelEntry, Sweep
from quantkv.sweep.grid import Cell

Result = Mapping[str, Any]
OnArm = Callable[[Cell, Result], None]
Step = Callable[[str, int, int], None]


class Session(Protocol):
    """One loaded model. A result is {status, reason, <kind>: section, effective, seconds, tokens}."""

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """Everything beside the cell itself that determines its number: weights, tokens, device, versions."""

    def check(self, cell: Cell) -> None:
        """Raise ``UnsupportedError`` when this model cannot run the cell."""

    def quality(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def speed(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def memory(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def retrieval(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def generation(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        """The whole row, with protocol and provenance."""

    def close(self) -> None: ...


class Measure(Protocol):
    """Where measurements come from."""

    def preflight(self, sweep: Sweep) -> None:
        """Raise ``QuantKVError`` for what is wrong with the sweep as a whole, before anything is measured."""

    def open(self, model: ModelEntry, sweep: Sweep) -> Session: ...
