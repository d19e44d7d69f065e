"""`quantkv sweep --dry-run`: the grid, the bytes of every cell, what cannot fit, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from quantkv.errors import QuantKVError
from quantkv.planner import sizes
from quantkv.planner.sizes import both_sizes, size
from quantkv.rows.cell import Cell
from quantkv.sweep.config import Sweep
from quantkv.sweep.costs import Past, cell_costs
from quantkv.sweep.fitting import check_limit, model_config
from quantkv.sweep.grid import blocks, planned
from quantkv.sweep.naming import ModelNames
from quantkv.sweep.progress import duration
from quantkv.wording.streams import print_line, print_wide

TOO_LARGE = "!"


def print_grid(settings: Sweep, console: Console) -> None:
    """Print what a sweep would measure; nothing is loaded, measured or written."""
    with console.status("reading configurations"):
        found = _Grid(settings)
    print_wide(found.table(), console)
    console.print()
    for line in found.lines():
        print_line(line, console)


def grid(settings: Sweep) -> dict[str, Any]:
    """The same for a program: each cell, the bytes of its cache (null where unknown), whether it fits and
    whether it has a row; seconds for those without one, the kinds of which nothing is known, and what would
    stop the sweep before it begins."""
    found = _Grid(settings)
    seconds, unknown = found.past.seconds(found.open_cells)
    whole = {"out": str(settings.run.out), "free_bytes": found.free.nbytes, "stops": list(found.beyond())}
    whole |= {"seconds": seconds, "no_estimate_for": list(unknown)}
    return whole | {"cells": [found.told(cell) for cell in found.cells]}


class _Grid:
    """The cells of a sweep, what they take, and which of them are open: without a row."""

    def __init__(self, settings: Sweep) -> None:
        self.settings, self.cells = settings, planned(settings)
        self.names = ModelNames(cell.model for cell in self.cells)
        self.costs = dict(zip(self.cells, cell_costs(self.cells)))
        self.free, self.past = sizes.free_memory(), Past(settings)
        self.finished = {cell for cell in self.cells if self.past.has(cell)}
        self.open_cells = [cell for cell in self.cells if cell not in self.finished]

    def fits(self, cell: Cell) -> bool:
        return self.costs[cell].fits(self.free.nbytes)

    def told(self, cell: Cell) -> dict[str, Any]:
        told = {"kind": cell.kind, "part": cell.part or None, **cell.requested(), "prefill": cell.prefill}
        told |= {"cache_bytes": self.costs[cell].cache, "fits": self.fits(cell)}
        return told | {"finished": cell in self.finished}

    def table(self) -> Table:
        names = ("kind", "model", "context", "batch", "seed", "prefill", "formats")
        table = Table(*names, box=None, pad_edge=False)
        for block in blocks(self.cells):
            head = block.head
            seed = str(head.seed) if head.kind == "quality" else "-"
            formats = ", ".join(self._format(cell) for cell in block.cells)
            kind, model = f"{head.kind} {head.part}".strip(), self.names.of(head.model)
            table.add_row(kind, model, str(head.context), str(head.batch), seed, head.prefill, formats)
        return table

    def _format(self, cell: Cell) -> str:
        cache = self.costs[cell].cache
        words = f"{cell.label} {'?' if cache is None else size(cache)}"
        return words if self.fits(cell) else f"{words} {TOO_LARGE}"

    def lines(self) -> Iterator[str]:
        yield "sizes: the cache at its context, without weights and activations"
        free = f"{both_sizes(self.free.nbytes)} ({self.free.where})"
        yield f"free now: {free}; speed holds the caches of a line at once"
        yield from self._remarks()
        yield from (f"{TOO_LARGE} the sweep would stop: {why}" for why in self.beyond())
        yield f"{len(self.cells)} cells; results would go to {self.settings.run.out}"
        yield from self._time()

    def _remarks(self) -> Iterator[str]:
        """Why sizes are unknown, and which cells do not fit beside the weights of their model."""
        for why in dict.fromkeys(cost.why for cost in self.costs.values() if cost.why):
            yield f"? {why}"
        large: dict[str, list[Cell]] = {}
        for cell in self.cells:
            if not self.fits(cell):
                large.setdefault(self.names.of(cell.model), []).append(cell)
        for model, cells in large.items():
            weights = both_sizes(self.costs[cells[0]].weights or 0)
            yield f"{TOO_LARGE} {len(cells)} cells of {model} cannot fit: its weights take {weights}"

    def beyond(self) -> Iterator[str]:
        """Models that cannot be found, or read fewer tokens than the sweep would give them."""
        for entry in self.settings.models:
            try:
                if (config := model_config(entry)) is not None:
                    check_limit(config, entry.id, self.settings)
            except QuantKVError as error:
                yield str(error)

    def _time(self) -> Iterator[str]:
        """From rows that are there: how many cells have one, and the time of the others."""
        if self.finished:
            yield f"{len(self.finished)} of them have a row there already"
        if not self.open_cells:
            return
        seconds, unknown = self.past.seconds(self.open_cells)
        known = [f"about {duration(seconds)}, going by earlier rows"] if seconds else []
        missing = (
            [f"no estimate for {', '.join(unknown)}: no such cell has finished there"] if unknown else []
        )
        yield f"time: {'; '.join(known + missing)}"
