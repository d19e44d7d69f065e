"""How much of what queries attend to was packed, in a cache that was prefilled in one exact call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from quantkv.cache.kv_shapes import donor
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.decode_exact.schedule import BatchRows, Call, Schedule
from quantkv.errors import QuantKVError
from quantkv.policy import Window


def packed_read_fraction(cache: QuantizedCache, prompt: int, calls: Sequence[int]) -> float:
    """The share of attended (query, key) pairs that are packed over calls of these sizes after the prompt.

    A call that begins with n cached tokens reads packed what lies below the boundary of n. Rows are taken to
    have no padding.
    """
    schedule = Schedule(torch.tensor([prompt]), (prompt, *calls), count_from=torch.tensor([prompt]))
    length = prompt + sum(calls)
    call = Call(schedule, BatchRows.unpadded(1, length), 0, length)
    pairs, packed = total(reads(layer, call) for layer in attended_layers(cache))
    return packed / pairs if pairs else 0.0


def reads(layer: Any, call: Call) -> Tensor:
    """The (query, key) pairs that a layer attends to over a call, of all its rows, and how many of them are
    packed: `[2]`."""
    span = layer.sliding_window if layer.is_sliding else call.stop
    return call.counts(span, tuple(_windows(layer))).sum(-1)


def total(found: Iterable[Tensor]) -> tuple[int, int]:
    pairs, packed = sum(found, torch.zeros(2, dtype=torch.float64)).tolist()
    return int(pairs), int(packed)


def attended_layers(cache: QuantizedCache) -> Iterator[Any]:
    """The layer that each attention layer of the model reads: one that others share comes several times,
    linear layers, which cache no keys, do not come."""
    for index, own in enumerate(cache.layers):
        source = donor(cache.config, index)
        layer = own if source is None else cache.layers[source]
        if isinstance(layer, CacheLayerMixin):
            yield layer


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
