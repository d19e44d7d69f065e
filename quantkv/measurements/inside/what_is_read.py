"""What a real cache layer shows to the queries that follow a prefill."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quantkv.attention import KVHandle
from quantkv.cache.layer import QuantizedLayer
from quantkv.codecs import compute_dtype
from quantkv.policy import Window
from quantkv.spec.specs import CacheSpec


@dataclass(frozen=True, slots=True)
class Held:
    """One tensor `[1, H, n, D]`, the last n positions of a text, exact and as the cache shows it; tokens in
    `packed` are read decoded, the others are exact."""

    exact: Tensor
    shown: Tensor
    packed: slice

    @property
    def packed_tokens(self) -> int:
        return max(0, self.packed.stop - self.packed.start)


def packs(spec: CacheSpec, context: int) -> bool:
    """Whether the format packs any key or value of a prompt of `context` tokens."""
    return max(window.packed(context) for window in (spec.key_window, spec.value_window)) > 0


def held(layer: QuantizedLayer, key: Tensor, value: Tensor, prefill: int) -> tuple[Held, Held]:
    """Keys and values as `layer`, empty before and after, shows them to queries from position `prefill` on.

    The first `prefill` tokens come in one call and are packed as its policy says, the rest in a second call.
    """
    try:
        layer.update(key[:, :, :prefill], value[:, :, :prefill])
        keys, values = layer.update(key[:, :, prefill:], value[:, :, prefill:])
        windows = (layer.spec.key_window, layer.spec.value_window)
        pairs = zip((key, value), (keys, values), windows, strict=True)
        first, second = (_held(exact, shown, window, prefill) for exact, shown, window in pairs)
        return first, second
    finally:
        layer.reset()


def _held(exact: Tensor, shown: Tensor, window: Window, prefill: int) -> Held:
    dtype = compute_dtype(exact.dtype)
    if isinstance(shown, KVHandle):
        shown = shown.kv.read(0, shown.shape[2], dtype)
    start = exact.shape[2] - shown.shape[2]  # a sliding window shows only what it still reaches
    low, high = (max(0, edge - start) for edge in (window.sinks, window.boundary(prefill)))
    return Held(exact[:, :, start:].to(dtype), shown.to(dtype), slice(low, high))
