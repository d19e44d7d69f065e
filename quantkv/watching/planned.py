"""The cells a sweep file asks for, and which of them have a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from quantkv.rows.cell import Cell
from quantkv.rows.files import Row, rank
from quantkv.sweep.answers import Answers
from quantkv.sweep.config import load_config
from quantkv.sweep.costs import Past
from quantkv.sweep.grid import planned
from quantkv.wording.parts import fingerprint_of


class PlannedCells:
    """A sweep file laid over a results folder."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.settings = load_config(config, [f"run.out={json.dumps(str(folder))}"])
        self.cells = planned(self.settings)

    def sort(self, rows: Iterable[Row]) -> tuple[list[Row], list[Cell]]:
        """The best row of each planned cell, and the cells that have none."""
        mine, without = [], []
        for cell, own in self._answered(rows):
            if own:
                mine.append(max(own, key=rank))
            else:
                without.append(cell)
        return mine, without

    def answering(self, rows: Iterable[Row]) -> list[Row]:
        """The best rows of each planned cell, one of each checkpoint that has stood under the model's name:
        which of them stands there now is not known without reading it."""
        return [row for _, own in self._answered(rows) for row in own]

    def _answered(self, rows: Iterable[Row]) -> Iterator[tuple[Cell, list[Row]]]:
        there = Answers(rows)
        for cell in self.cells:
            yield cell, _of_each_checkpoint(there.to(cell))

    def seconds(self, cells: Iterable[Cell], rows: Iterable[Row]) -> tuple[float, dict[str, int]]:
        """What these cells take one after the other, going by ``rows``, and how many there are of kinds of
        which none tells."""
        return Past(self.settings, rows).seconds(cells)


def _of_each_checkpoint(rows: Iterable[Row]) -> list[Row]:
    """The best row of each; one that never saw its model is told only where there is no other."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=rank, reverse=True):
        best.setdefault(fingerprint_of(row), row)
    blind = best.get("")
    if blind is not None and blind["status"] != "ok" and len(best) > 1:
        del best[""]
    return list(best.values())
