"""A share of a sweep: whole blocks, so that a shared prefill is made once, dealt out by their size."""

from __future__ import annotations

from collections.abc import Sequence

from quantkv.rows.cell import Cell
from quantkv.sweep.config import Sweep
from quantkv.sweep.grid import Block, blocks, expand


def planned(sweep: Sweep) -> list[Cell]:
    """The cells that a sweep measures: all of them, or those of its shard."""
    cells = expand(sweep)
    if sweep.run.shard is None:
        return cells
    number, count = map(int, sweep.run.shard.split("/"))
    return of_shard(cells, number, count)


def of_shard(cells: Sequence[Cell], number: int, count: int) -> list[Cell]:
    """The share `number` (from 1) of `count`: the same for everyone who asks, and near an even one."""
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
