"""What a real cache layer shows to the queries that follow a prefill, and how wrong that is, per KV head: its
keys and values, its attention logits, its attention output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantkv.cache.layer import QuantizedLayer
from quantkv.codecs import compute_dtype
from quantkv.engines import AttentionOptions, KVHandle, PlainReadable
from quantkv.engines.attention import attend
from quantkv.measurements.inside.capture import LayerCall
from quantkv.policy import Window
from quantkv.spec.specs import CacheSpec

QUERY_BLOCK = 32
"""Queries taken at a time, so that scores stay bounded for long contexts."""


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


def relative_rms(exact: Tensor, other: Tensor) -> Tensor:
    """`‖other − exact‖ / ‖exact‖` per head of `[1, H, …]`, as float64 `[H]`; NaN where there is nothing to
    compare."""
    gap, size = ((x.double()[0]).flatten(1).norm(dim=1) for x in (other - exact, exact))
    return gap / size


def rms(x: Tensor) -> Tensor:
    """Root mean square per head of `[1, H, …]`, as float64 `[H]`."""
    return x.double()[0].flatten(1).square().mean(1).sqrt()


def exact_output(seen: LayerCall, queries: int) -> Tensor:
    """Attention output `[1, Hq, queries, Dv]` of the layer's last queries over exact keys and values."""
    dtype = compute_dtype(seen.key.dtype)
    return _output(seen, seen.key.to(dtype), seen.value.to(dtype), queries)


def layer_errors(seen: LayerCall, keys: Held, values: Held, exact: Tensor) -> dict[str, Tensor]:
    """Errors of one layer for the queries of its `exact_output`, each `[H]`.

    `key_error`, `value_error`: relative RMS over packed tokens. `logit_error`: RMS over queries and packed
    keys of the change of the scaled logits, in nats. `output_error`: relative RMS of the attention output;
    `output_error_keys` and `output_error_values` the same with only the keys or only the values packed;
    `output_rms`: that of the exact output.
    """
    packed = [(x.exact[:, :, x.packed], x.shown[:, :, x.packed]) for x in (keys, values)]
    heads, queries = keys.exact.shape[1], exact.shape[2]
    pairs = {
        "output_error": (keys.shown, values.shown),
        "output_error_keys": (keys.shown, values.exact),
        "output_error_values": (keys.exact, values.shown),
    }
    outputs = {name: _by_kv_head(_output(seen, *pair, queries), heads) for name, pair in pairs.items()}
    exact = _by_kv_head(exact, heads)
    return {
        "key_error": relative_rms(*packed[0]),
        "value_error": relative_rms(*packed[1]),
        "logit_error": _logit_error(seen, packed[0][1] - packed[0][0], queries),
        **{name: relative_rms(exact, output) for name, output in outputs.items()},
        "output_rms": rms(exact),
    }


def _by_kv_head(x: Tensor, heads: int) -> Tensor:
    """`[1, Hq, …]` as `[1, H, Hq / H, …]`."""
    return x.unflatten(1, (heads, -1))


def _logit_error(seen: LayerCall, gap: Tensor, queries: int) -> Tensor:
    """RMS of `scaling · q · gap` for the change `gap` `[1, H, n, D]` of the packed keys: `[H]`."""
    q = _by_kv_head(seen.query[:, :, -queries:].to(gap.dtype), gap.shape[1]).flatten(2, 3)
    q = q * seen.options.scale(q.shape[-1])
    # the mean over queries and keys of (q · gap)² needs only the second moments of both
    first, second = (x.double().transpose(-1, -2) @ x.double() / x.shape[-2] for x in (q, gap))
    return (first * second).sum((-1, -2))[0].clamp_min(0).sqrt()


def _output(seen: LayerCall, key: Tensor, value: Tensor, queries: int) -> Tensor:
    """Attention output `[1, Hq, queries, Dv]` of the layer's last queries over keys and values `[1, H, n, D]`
    that are the last n positions."""
    total, width = seen.query.shape[2], key.shape[2]
    parts = []
    for start in range(total - queries, total, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, total)
        seen_keys = width - (total - stop)
        options = _options_for(seen.options, slice(start, stop), slice(total - width, stop))
        keys, values = (PlainReadable(x[:, :, :seen_keys]) for x in (key, value))
        parts.append(attend(seen.query[:, :, start:stop].to(key.dtype), keys, values, options))
    return torch.cat(parts, 2)


def _options_for(options: AttentionOptions, queries: slice, keys: slice) -> AttentionOptions:
    """The engines' options for some queries and keys: the mask `[1, 1|Hq, T, T]` cut out."""
    mask = options.mask
    return options if mask is None else replace(options, mask=mask[:, :, queries, keys])
