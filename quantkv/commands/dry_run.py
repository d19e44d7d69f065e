"""`quantkv sweep --dry-run`: the grid, the bytes of every cell, what cannot fit, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quantkv.wording.wide import print_wide

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from quantkv.sweep.config import Sweep
    from quantkv.sweep.costs import Cost, Past
    from quantkv.sweep.grid import Cell

TOO_LARGE = "!"


def print_grid(settings: Sweep, console: Console) -> None:
    """Print what a sweep would measure; nothing is loaded, measured or written."""
    with console.status("reading configurations"):
        from quantkv.planner.sizes import both_sizes, free_memory
        from quantkv.sweep.costs import Past, cell_costs
        from quantkv.sweep.shards import planned

        cells = planned(settings)
        costs = dict(zip(cells, cell_costs(cells)))
        free, past = free_memory(), Past(settings)
    print_wide(_table(cells, costs, free.nbytes), console)
    console.print()
    lines = [
        "sizes: the cache at its context, without weights and activations",
        f"free now: {both_sizes(free.nbytes)} ({free.where}); speed holds the caches of a line at once",
        *_remarks(cells, costs, free.nbytes),
        *(f"{TOO_LARGE} the sweep would stop: {why}" for why in _beyond(settings)),
        f"{len(cells)} cells; results would go to {settings.run.out}",
        *_time(cells, past),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def grid(settings: Sweep) -> dict[str, Any]:
    """The same for a program: each cell, the bytes of its cache (null where unknown), whether it fits and
    whether it has a row; seconds for those without one, the kinds of which nothing is known, and what would
    stop the sweep before it begins."""
    from quantkv.planner.sizes import free_memory
    from quantkv.sweep.costs import Past, cell_costs
    from quantkv.sweep.shards import planned

    cells = planned(settings)
    free, past = free_memory(), Past(settings)
    seconds, unknown = past.seconds(cell for cell in cells if not past.has(cell))
    told = [
        {"kind": cell.kind, "part": cell.part or None, **cell.requested(), "prefill": cell.prefill}
        | {"cache_bytes": cost.cache, "fits": cost.fits(free.nbytes), "finished": past.has(cell)}
        for cell, cost in zip(cells, cell_costs(cells))
    ]
    time = {"seconds": seconds, "no_estimate_for": list(unknown)}
    told_of_all = {"out": str(settings.run.out), "free_bytes": free.nbytes, "stops": list(_beyond(settings))}
    return told_of_all | time | {"cells": told}


def _table(cells: list[Cell], costs: dict[Cell, Cost], free: int) -> Table:
    from rich.table import Table

    from quantkv.sweep.grid import blocks
    from quantkv.sweep.naming import ModelNames

    names = ModelNames(cell.model for cell in cells)
    table = Table("kind", "model", "context", "batch", "seed", "prefill", "formats", box=None, pad_edge=False)
    for block in blocks(cells):
        head = block.head
        seed = str(head.seed) if head.kind == "quality" else "-"
        formats = ", ".join(_name(cell, costs[cell], free) for cell in block.cells)
        kind = f"{head.kind} {head.part}".strip()
        model = names.of(head.model)
        table.add_row(kind, model, str(head.context), str(head.batch), seed, head.prefill, formats)
    return table


def _name(cell: Cell, cost: Cost, free: int) -> str:
    from quantkv.planner.sizes import size

    held = "?" if cost.cache is None else size(cost.cache)
    return f"{cell.label} {held}" + ("" if cost.fits(free) else f" {TOO_LARGE}")


def _remarks(cells: list[Cell], costs: dict[Cell, Cost], free: int) -> Iterator[str]:
    """Why sizes are unknown, and which cells do not fit beside the weights of their model."""
    from quantkv.planner.sizes import both_sizes
    from quantkv.sweep.naming import ModelNames

    names = ModelNames(cell.model for cell in cells)
    for why in dict.fromkeys(cost.why for cost in costs.values() if cost.why):
        yield f"? {why}"
    for model in dict.fromkeys(names.of(cell.model) for cell in cells):
        large = [cell for cell in cells if names.of(cell.model) == model and not costs[cell].fits(free)]
        if large:
            weights = both_sizes(costs[large[0]].weights or 0)
            yield f"{TOO_LARGE} {len(large)} cells of {model} cannot fit: its weights take {weights}"


def _beyond(settings: Sweep) -> Iterator[str]:
    """Models that cannot be found, or read fewer tokens than the sweep would give them."""
    from quantkv.errors import QuantKVError
    from quantkv.sweep.preflight import check_limit, model_config

    for entry in settings.models:
        try:
            if (config := model_config(entry)) is not None:
                check_limit(config, entry.id, settings)
        except QuantKVError as error:
            yield str(error)


def _time(cells: list[Cell], past: Past) -> Iterator[str]:
    """From rows that are there: how many cells have one, and the time of the others."""
    from quantkv.sweep.progress import duration

    open_cells = [cell for cell in cells if not past.has(cell)]
    if len(open_cells) < len(cells):
        yield f"{len(cells) - len(open_cells)} of them have a row there already"
    if not open_cells:
        return
    seconds, unknown = past.seconds(open_cells)
    known = [f"about {duration(seconds)}, going by earlier rows"] if seconds else []
    missing = [f"no estimate for {', '.join(unknown)}: no such cell has finished there"] if unknown else []
    yield f"time: {'; '.join(known + missing)}"
