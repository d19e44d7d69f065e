"""What measures cells, as a sweep sees it: one loaded model at a time, here, in another process or a fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quantkv.measurements.kind import OnCell, Result, Step
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep


class Session(Protocol):
    """One loaded model. A result is {status, reason, <kind>: section, effective, seconds, tokens}."""

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """Everything beside the cell itself that determines its number: weights, tokens, device, versions."""

    def check(self, cell: Cell) -> None:
        """Raise ``UnsupportedError`` when this model cannot run the cell."""

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        """Measure the cells of one block, of one kind."""

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        """The whole row, with protocol and provenance."""

    def close(self) -> None: ...


class Measure(Protocol):
    """Where measurements come from."""

    def preflight(self, sweep: Sweep) -> None:
        """Raise ``QuantKVError`` for what is wrong with the sweep as a whole, before anything is measured."""

    def open(self, model: ModelEntry, sweep: Sweep) -> Session: ...
