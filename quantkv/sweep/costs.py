"""What a sweep will take, before it runs: bytes of each cell's cache, and the time of cells like those that
are finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row, rows_there
from quantkv.rows.kinds import known
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.answers import Answers
from quantkv.sweep.config import Sweep
from quantkv.sweep.forecast import Forecast
from quantkv.sweep.grid import blocks
from quantkv.sweep.naming import ModelNames


@dataclass(frozen=True)
class Cost:
    """Bytes of a cell's model and of its cache, the most on the way to its context; None where they cannot
    be planned, and why. `beside` are the caches of other cells that are held at the same time."""

    weights: int | None
    cache: int | None
    why: str = ""
    beside: int = 0

    def fits(self, free: int) -> bool:
        """False only where it is known not to."""
        return self.weights is None or self.cache is None or self.weights + self.cache + self.beside <= free


def cell_costs(cells: Iterable[Cell]) -> list[Cost]:
    """The cost of each cell, in order. Models are read from their configurations, once each."""
    models: dict[str, Any] = {}
    costs = {cell: _cost(cell, models) for cell in cells}
    for block in blocks(costs):
        if known(block.kind).together:  # all its arms take turns, so all their caches are held
            whole = sum(costs[cell].cache or 0 for cell in block.cells)
            for cell in block.cells:
                costs[cell] = replace(costs[cell], beside=whole - (costs[cell].cache or 0))
    return list(costs.values())


def _cost(cell: Cell, models: dict[str, Any]) -> Cost:
    from transformers import DynamicCache

    from quantkv.cache.footprint import cache_footprint
    from quantkv.cache.quantized import QuantizedCache
    from quantkv.spec.specs import CacheSpec

    key = cell.model.model_dump_json()
    if key not in models:
        models[key] = _read(cell.model)
    config, shape, why = models[key]
    if shape is None:
        return Cost(None, None, why)
    if cell.spec is not None and not isinstance(cell.spec, CacheSpec):
        return Cost(shape.weights_nbytes, None, f"{cell.label} keeps a cache of its own")
    try:
        cache = DynamicCache(config=config) if cell.spec is None else QuantizedCache(config, cell.spec)
        footprint = cache_footprint(shape.layers, cache)
        return Cost(shape.weights_nbytes, footprint.peak_nbytes(cell.context, cell.batch))
    except QuantKVError as error:
        return Cost(shape.weights_nbytes, None, f"{cell.label}: {error}")


def _read(entry: ModelEntry) -> tuple[Any, Any, str]:
    """Configuration, shape and "" of a model; None, None and why it cannot be planned."""
    from quantkv.models.loading import load_config
    from quantkv.planner.planning import model_dtype
    from quantkv.planner.probe import probe

    try:
        config = load_config(entry.location, revision=entry.revision)
        dtype = None if entry.dtype == "auto" else entry.dtype
        return config, probe(config, model_dtype(dtype, config)), ""
    except QuantKVError as error:
        return None, None, str(error)


class Past:
    """What the rows in a folder tell about cells still to be run."""

    def __init__(self, sweep: Sweep, rows: Iterable[Row] | None = None) -> None:
        rows = rows_there(Path(sweep.run.out)) if rows is None else rows
        self._rows = [row for row in rows if row["status"] == "ok"]
        self._answers = Answers(self._rows)
        self._workers = sweep.workers

    def has(self, cell: Cell) -> bool:
        """Whether a row answers the same question; that its model and text are still the same shows later."""
        return bool(self._answers.to(cell))

    def seconds(self, cells: Iterable[Cell]) -> tuple[float, dict[str, int]]:
        """Time for these cells, and how many there are of kinds (by model, where there are several) of which
        no row tells."""
        total, unknown = 0.0, dict[str, int]()
        cells = list(cells)
        names = ModelNames(cell.model for cell in cells)
        for model in names.models:
            own = [(cell.kind, cell.context) for cell in cells if cell.model == model]
            seconds, missing = self._forecast(model).left(own)
            total += seconds
            of = f" of {names.of(model)}" if names.several else ""
            unknown |= {f"{kind}{of}": count for kind, count in missing.items()}
        return total, unknown

    def _forecast(self, model: ModelEntry) -> Forecast:
        forecast = Forecast(self._workers)
        for row in self._rows:
            asked = row["requested"]
            if (asked.get("model"), asked.get("dtype")) == (model.id, model.dtype):
                forecast.learn_row(row)
        return forecast
