"""The grid: model x kind x format x policy x context x batch x seed, as cells, and what runs together."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quantkv.measurements.kind import kind
from quantkv.rows.cell import Cell
from quantkv.sweep.config import Sweep


@dataclass(frozen=True)
class Block:
    """Cells that share a prefill and a reference, a baseline, or a turn; missing ones are run together."""

    cells: tuple[Cell, ...]

    @property
    def head(self) -> Cell:
        return self.cells[0]

    @property
    def kind(self) -> str:
        return self.head.kind


def expand(sweep: Sweep) -> list[Cell]:
    """Every cell of the sweep once, model by model, kind by kind."""
    cells: list[Cell] = []
    for model, name in itertools.product(sweep.models, sweep.kinds):
        cells += _distinct(kind(name).cells(sweep, model))
    return cells


def blocks(cells: Iterable[Cell]) -> list[Block]:
    """Cells grouped by what they share, in order of first appearance."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell), []).append(cell)
    return [Block(tuple(group)) for group in groups.values()]


def _distinct(cells: Iterable[Cell]) -> list[Cell]:
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(
            json.dumps([cell.requested() | {"format": ""}, dict(cell.protocol)], sort_keys=True), cell
        )
    return list(found.values())


def _group(cell: Cell) -> Any:
    protocol = json.dumps(dict(cell.protocol), sort_keys=True)
    return cell.kind, cell.model.model_dump_json(), cell.context, cell.batch, cell.seed, protocol
