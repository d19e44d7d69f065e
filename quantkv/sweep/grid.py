"""The grid: model x kind x format x policy x context x batch x seed, as cells, what runs together, and the
share of one worker of several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
    parts = (sweep.section(name).cells(sweep, model) for model in sweep.models for name in sweep.kinds)
    return [cell for part in parts for cell in distinct_cells(part, "")]


def blocks(cells: Iterable[Cell]) -> list[Block]:
    """Cells grouped by what they share, in order of first appearance."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell), []).append(cell)
    return [Block(tuple(group)) for group in groups.values()]


def distinct_cells(cells: Iterable[Cell], label: str | None = None) -> list[Cell]:
    """Cells of one kind that ask for different things; with a ``label`` in place of theirs, two names of one
    format ask for the same."""
    found: dict[str, Cell] = {}
    for cell in cells:
        asked = cell.requested() | ({} if label is None else {"format": label})
        found.setdefault(json.dumps([asked, dict(cell.protocol)], sort_keys=True), cell)
    return list(found.values())


def _group(cell: Cell) -> Any:
    protocol = json.dumps(dict(cell.protocol), sort_keys=True)
    return cell.kind, cell.model.model_dump_json(), cell.context, cell.batch, cell.seed, protocol


def planned(sweep: Sweep) -> list[Cell]:
    """The cells that a sweep measures: all of them, or those of its shard."""
    return of_shard(expand(sweep), *map(int, (sweep.run.shard or "1/1").split("/")))


def of_shard(cells: Sequence[Cell], number: int, count: int) -> list[Cell]:
    """The share `number` (from 1) of `count`: the same for everyone who asks, and near an even one. Whole
    blocks, so that a shared prefill is made once, dealt out by their size."""
    loads = [0] * count
    mine: set[Cell] = set()
    for block in sorted(blocks(cells), key=_size, reverse=True):
        share = loads.index(min(loads))
        loads[share] += _size(block)
        if share == number - 1:
            mine |= {*block.cells}
    return [cell for cell in cells if cell in mine]


def _size(block: Block) -> int:
    """Tokens that its cells cache, as a measure of their time."""
    return sum(cell.context * cell.batch for cell in block.cells)
