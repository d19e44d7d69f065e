"""Bytes of a whole cache, in closed form: what each layer of a model holds, from shapes and lengths alone.

Packed layers follow `store.bytes`. The layers that transformers builds itself are exact: full attention grows
with every token; a sliding (or chunked) window keeps its last `window − 1` tokens, and beside them those of
the last call until the next one comes; linear attention and convolutions keep a state of fixed size.
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
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import TensorSpec
from quantkv.store import KEY_LANES, VALUE_LANES, Lanes, page_layout
from quantkv.store.bytes import tensor_nbytes


def exact_nbytes(layer: LayerShape, length: int, rows: int, call: int = 1) -> int:
    """Bytes of a layer as transformers keeps it: `length` tokens, `call` of them from the last call."""
    if length == 0:
        return 0
    call = min(call, length)
    held = length if layer.window is None else min(length - call, layer.window - 1) + call
    return rows * (layer.states + held * layer.token_nbytes)


def packed_nbytes(layer: LayerShape, spec: CacheSpec, length: int, rows: int) -> int:
    """Bytes of a quantized layer; `spec` has no per-layer overrides left. QuantKVError where it cannot hold
    such tensors."""
    if length == 0:
        return 0
    if layer.window is not None:
        spec = replace(spec, sinks=0)
    return sum(
        tensor_nbytes(
            tensor.build(),
            window,
            rows=rows,
            num_heads=shape.heads,
            head_dim=shape.width,
            length=length,
            dtype=shape.dtype,
            lanes=lanes,
            span=None if layer.window is None else layer.window - 1,
        )
        for shape, tensor, window, lanes in (
            (layer.key, spec.key, spec.key_window, KEY_LANES),
            (layer.value, spec.value, spec.value_window, VALUE_LANES),
        )
        if shape is not None
    )


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
        return sum(
            count
            * (
                exact_nbytes(layer, length, rows, call)
                if spec is None
                else packed_nbytes(layer, spec, length, rows)
            )
            for layer, spec, count in self.layers
        )

    def peak_nbytes(self, length: int, rows: int = 1) -> int:
        """The most bytes held at any step on the way to `length` tokens.

        Bytes only grow, but where a format waits for more than N tokens before it packs: they fall then.
        """
        waits = {
            spec.quantize_after + spec.reserve for _, spec, _ in self.layers if spec and spec.quantize_after
        }
        stops = {length} | {min(length, wait) for wait in waits}
        return max(self.nbytes(stop, rows) for stop in stops)

    @property
    def token_nbytes(self) -> float:
        """Bytes that one more token of a row costs in the long run: full pages, without slabs' slack; 0 where
        all layers are bounded."""
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

    def of(shape: TensorShape | None, tensor: TensorSpec, lanes: Lanes) -> float:
        if shape is None:
            return 0
        layout = page_layout(tensor.build(), shape.heads, shape.width, shape.dtype, lanes)
        return layout.record_bytes / layout.page_tokens

    return of(layer.key, spec.key, KEY_LANES) + of(layer.value, spec.value, VALUE_LANES)


def cache_footprint(layers: Iterable[LayerShape], cache: Any) -> Footprint:
    """The footprint of a cache over layers of these shapes: a `QuantizedCache`, or a `DynamicCache`."""
    if not isinstance(cache, QuantizedCache):
        return Footprint.of((layer, None) for layer in layers)
    specs = (layer.spec if isinstance(layer, QuantizedLayer) else None for layer in cache.layers)
    return Footprint.of(zip(layers, specs, strict=True))
