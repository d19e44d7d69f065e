"""Bytes of a whole cache, in closed form: what each layer of a model holds, from shapes and lengths alone.

Packed layers follow `store.layout`. The layers that transformers builds itself are exact: full attention
grows with every token; a sliding (or chunked) window keeps its last `window − 1` tokens, and beside them
those of the last call until the next one comes; linear attention and convolutions keep a state of fixed size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.layer_shapes import LayerShape, TensorShape
from quantkv.cache.quantized import QuantizedCache
from quantkv.spec.specs import CacheSpec, Half
from quantkv.store.layout import tensor_nbytes


def layer_nbytes(layer: LayerShape, spec: CacheSpec | None, length: int, rows: int, call: int = 1) -> int:
    """Bytes of a layer with `length` tokens, `call` of them from the last call. `spec`, without overrides,
    packs it; None: as transformers keeps it. QuantKVError where a format cannot hold such tensors."""
    if length == 0:
        return 0
    call, window = min(call, length), layer.window
    if spec is None:
        held = length if window is None else min(length - call, window - 1) + call
        return rows * (layer.states + held * layer.token_nbytes)
    spec, span = (spec, None) if window is None else (replace(spec, sinks=0), window - 1)
    nbytes = 0
    for half, shape in _halves(layer, spec):
        stored = half.stored(shape.heads, shape.width, shape.dtype)
        nbytes += tensor_nbytes(stored, half.window, rows, length, span=span)
    return nbytes


def _halves(layer: LayerShape, spec: CacheSpec) -> list[tuple[Half, TensorShape]]:
    """The keys and the values that a layer caches, each with its shape."""
    pairs = zip(spec.halves, (layer.key, layer.value), strict=True)
    return [(half, shape) for half, shape in pairs if shape is not None]


@dataclass(frozen=True)
class Footprint:
    """Layers of a cache with the spec that packs each (None: exact), equal ones counted together."""

    layers: tuple[tuple[LayerShape, CacheSpec | None, int], ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[LayerShape, CacheSpec | None]]) -> Footprint:
        return cls(tuple((layer, spec, count) for (layer, spec), count in Counter(pairs).items()))

    def nbytes(self, length: int, rows: int = 1, call: int = 1) -> int:
        """Bytes after `length` tokens in each of `rows` rows, `call` of them in the last call: 1 while
        decoding, `length` right after a prompt that came at once."""
        return sum(n * layer_nbytes(layer, spec, length, rows, call) for layer, spec, n in self.layers)

    def peak_nbytes(self, length: int, rows: int = 1) -> int:
        """The most bytes held at any step on the way to `length` tokens.

        Bytes only grow, but where a format waits for more than N tokens before it packs: they fall then.
        """
        windows = [half.window for _, spec, _ in self.layers if spec for half in spec.halves]
        stops = {length} | {min(length, window.after + window.reserve) for window in windows if window.after}
        return max(self.nbytes(stop, rows) for stop in stops)

    @property
    def token_nbytes(self) -> float:
        """Bytes of one more token of a row in the long run: full pages, no slack; 0 for bounded layers."""
        return sum(
            count * (layer.token_nbytes if spec is None else _page_nbytes(layer, spec))
            for layer, spec, count in self.layers
            if layer.window is None
        )

    @property
    def bits_packed(self) -> float:
        """Bits per value of full pages, over the layers that are packed; NaN where none is."""
        packed = [(layer, spec, count) for layer, spec, count in self.layers if spec is not None]
        elements = sum(count * layer.token_elements for layer, _, count in packed)
        nbytes = sum(count * _page_nbytes(layer, spec) for layer, spec, count in packed)
        return 8 * nbytes / elements if elements else math.nan


def _page_nbytes(layer: LayerShape, spec: CacheSpec) -> float:
    """Bytes of full pages per token of a row."""
    layouts = [half.layout(shape.heads, shape.width, shape.dtype) for half, shape in _halves(layer, spec)]
    return sum(layout.record_bytes / layout.page_tokens for layout in layouts)


def cache_footprint(layers: Iterable[LayerShape], cache: Any) -> Footprint:
    """The footprint of a cache over layers of these shapes: a `QuantizedCache`, or a `DynamicCache`."""
    if not isinstance(cache, QuantizedCache):
        return Footprint.of((layer, None) for layer in layers)
    specs = (layer.spec if isinstance(layer, QuantizedLayer) else None for layer in cache.layers)
    return Footprint.of(zip(layers, specs, strict=True))
