"""The cells a sweep file asks for, and which of them have a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quantkv.sweep.config import load_config
from quantkv.sweep.costs import Past
from quantkv.sweep.grid import Cell
from quantkv.sweep.shards import planned

Row = Mapping[str, Any]
RANK = ("failed", "skipped", "ok")
FOUND_LATER = ("bos", "text", "threads", "windows")
"""Settings that a row holds as they turned out, not as they were asked for."""


class Plan:
    """A sweep file laid over a results folder."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.settings = load_config(config, [f"run.out={json.dumps(str(folder))}"])
        self.cells = planned(self.settings)

    def sort(self, rows: Iterable[Row]) -> tuple[list[Row], list[Cell]]:
        """The best row of each planned cell, and the cells that have none."""
        by_place: dict[str, list[Row]] = {}
        for row in rows:
            by_place.setdefault(_place(row["kind"], row["requested"]), []).append(row)
        mine, without = [], []
        for cell in self.cells:
            own = by_place.get(_place(cell.kind, cell.requested()), [])
            answers = [row for row in own if _same(cell, row.get("protocol") or {})]
            if answers:
                mine.append(max(answers, key=lambda row: RANK.index(row["status"])))
            else:
                without.append(cell)
        return mine, without

    def seconds(self, cells: Iterable[Cell]) -> tuple[float, bool]:
        """What these cells take one after the other, going by finished rows; whether that is all of them."""
        total, unknown = Past(self.settings).seconds(cells)
        return total, not unknown


def _place(kind: str, asked: Mapping[str, Any]) -> str:
    return json.dumps(
        [kind, {name: value for name, value in asked.items() if name != "format"}], sort_keys=True
    )


def _same(cell: Cell, protocol: Mapping[str, Any]) -> bool:
    asked = json.loads(json.dumps(dict(cell.protocol)))
    return all(protocol.get(name) == value for name, value in asked.items() if name not in FOUND_LATER)
