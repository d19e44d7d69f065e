"""The quantized caches that transformers ships, as lanes of a race; each needs a package of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quantkv.evaluation import huggingface as hf
from quantkv.evaluation.speed import Lane

BITS, GROUP = 4, 64


@dataclass(frozen=True)
class Stock:
    """A backend of `transformers.QuantizedCache`: int4 in groups of 64, its default window of 128."""

    name: str
    backend: str
    package: str
    available: Callable[[], bool]
    axis: int

    def cache(self, config: Any) -> Any:
        from transformers.cache_utils import QuantizedCache

        return QuantizedCache(
            self.backend, config, nbits=BITS, axis_key=self.axis, axis_value=self.axis, q_group_size=GROUP
        )


def stock_caches() -> list[Stock]:
    """The backends with 4 bits, each with the axis its documentation asks for."""
    from transformers.utils import is_hqq_available, is_optimum_quanto_available

    return [
        Stock("quanto-int4", "quanto", "optimum-quanto", is_optimum_quanto_available, 0),
        Stock("hqq-int4", "hqq", "hqq", is_hqq_available, 1),
    ]


class StockLane(Lane):
    """A lane that decodes through a stock quantized cache and the model's own attention."""

    __slots__ = ("stock",)

    def __init__(self, stock: Stock) -> None:
        super().__init__(stock.name, stock.name)
        self.stock = stock

    def fresh_cache(self, model: Any) -> Any:
        return self.stock.cache(model.config)

    def attention(self, model: Any) -> str:
        return hf.stock_attention(model)


def stock_lanes() -> tuple[list[Lane], list[str]]:
    """A lane for each backend whose package is installed, and a line for each other."""
    lanes: list[Lane] = []
    missing = []
    for stock in stock_caches():
        if stock.available():
            lanes.append(StockLane(stock))
        else:
            missing.append(f"{stock.name} left out: {stock.package} is not installed")
    return lanes, missing
