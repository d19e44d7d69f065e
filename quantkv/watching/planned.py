"""The cells a sweep file asks for, and which of them have a row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from quantkv.sweep.answers import answers, place
from quantkv.sweep.config import load_config
from quantkv.sweep.costs import Past
from quantkv.sweep.grid import Cell
from quantkv.sweep.results import Row
from quantkv.sweep.shards import planned

RANK = ("failed", "skipped", "ok")


class Plan:
    """A sweep file laid over a results folder."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.settings = load_config(config, [f"run.out={json.dumps(str(folder))}"])
        self.cells = planned(self.settings)

    def sort(self, rows: Iterable[Row]) -> tuple[list[Row], list[Cell]]:
        """The best row of each planned cell, and the cells that have none."""
        by_place: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            by_place.setdefault(place(row["kind"], row["requested"]), []).append(row)
        mine, without = [], []
        for cell in self.cells:
            near = by_place.get(place(cell.kind, cell.requested()), [])
            own = [row for row in near if answers(row, cell)]
            if own:
                mine.append(max(own, key=lambda row: RANK.index(row["status"])))
            else:
                without.append(cell)
        return mine, without

    def seconds(self, cells: Iterable[Cell]) -> tuple[float, dict[str, int]]:
        """What these cells take one after the other, going by finished rows, and how many there are of kinds
        of which none tells."""
        return Past(self.settings).seconds(cells)
