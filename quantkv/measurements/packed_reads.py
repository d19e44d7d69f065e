"""How much of what queries attend to was packed, in a cache that was prefilled in one exact call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers.cache_utils import CacheLayerMixin

from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.cache.sharing import donor
from quantkv.errors import QuantKVError
from quantkv.measurements.quality.checks import LOW_PACKED_READ
from quantkv.policy import Window


def packed_read_fraction(cache: QuantizedCache, prompt: int, calls: Sequence[int]) -> float:
    """The share of attended (query, key) pairs that are packed over calls of these sizes after the prompt.

    A call that begins with n cached tokens reads packed what lies below the boundary of n. Rows are taken to
    have no padding.
    """
    pairs = packed = 0
    for layer in attended_layers(cache):
        cached = prompt
        for size in calls:
            for query in range(cached, cached + size):
                first = max(0, query + 1 - layer.sliding_window) if layer.is_sliding else 0
                pairs += 2 * (query + 1 - first)
                packed += sum(
                    max(0, window.boundary(cached) - max(first, window.sinks)) for window in _windows(layer)
                )
            cached += size
    return packed / pairs if pairs else 0.0


def attended_layers(cache: QuantizedCache) -> Iterator[Any]:
    """The layer that each attention layer of the model reads: one that others share comes several times,
    linear layers, which cache no keys, do not come."""
    for index, own in enumerate(cache.layers):
        source = donor(cache.config, index)
        layer = own if source is None else cache.layers[source]
        if isinstance(layer, CacheLayerMixin):
            yield layer


def few_packed(packed_read: float) -> list[str]:
    """A flag where most of what was read is exact."""
    few = packed_read < LOW_PACKED_READ
    return [f"packed pairs are only {packed_read:.1%} of those attended"] if few else []


def check_packed(
    label: str, cache: QuantizedCache, context: int, place: tuple[int, int], *, tail: int
) -> None:
    """Raise where what is asked for is among the tokens that the format keeps exact at `context`."""
    for window in (window for layer in cache.quantized_layers for window in _windows(layer)):
        start, stop = window.sinks, window.boundary(context)
        if place[0] < start or place[1] > stop:
            raise QuantKVError(
                f"{label} packs tokens {start} to {stop} of {context}, but what is asked for lies at "
                f"{place[0]} to {place[1]} and would be read exactly; use a tail of {context - stop} tokens "
                f"or more (now {tail}), fewer sinks or a smaller window"
            )


def _windows(layer: Any) -> Iterator[Window]:
    if isinstance(layer, QuantizedLayer):
        yield from (layer.spec.key_window, layer.spec.value_window)
