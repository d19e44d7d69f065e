"""The decode-exact pass: one forward that equals token-by-token decoding through the packed cache.

A plain forward pass never reads a cache, so a perplexity from it says nothing about quantization. But which
tokens are packed at which step is a function of lengths alone: query `i`, in a call that began with `n0`
cached tokens, reads decoded values for `S ≤ j < b(n0)` and exact ones elsewhere, separately for keys and
values. Inside `simulate(...)` the model's attention does just that for all queries at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quantkv.attention import KVHandle
from quantkv.attention.reference import attend, hide
from quantkv.cache import QuantizedCache
from quantkv.codecs import Codec, compute_dtype
from quantkv.errors import QuantKVError
from quantkv.hooks import SIMULATION, PlainReadable, fused_attention
from quantkv.policy import Window
from quantkv.spec import (
    DEFAULT_FLUSH,
    DEFAULT_RECENT,
    DEFAULT_RESERVE,
    DEFAULT_SINKS,
    CacheSpec,
)
from quantkv.spec_text import parse_spec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FakeQuant = Callable[[Tensor], Tensor]
"""A plain function `x -> x̂` on `[B, H, T, D]` keys or values: accepted as a format, labelled simulated."""
BLOCK_SCORES = 2**24
"""Attention scores computed at a time (64 MiB in float32)."""
_PLAIN_WINDOW = Window(DEFAULT_SINKS, DEFAULT_RECENT, DEFAULT_FLUSH, DEFAULT_RESERVE)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """How one tensor of one layer is stored: its window, and `x -> x̂` on whole groups of tokens."""

    window: Window
    round_trip: FakeQuant


def _codec_round_trip(codec: Codec) -> FakeQuant:
    def round_trip(x: Tensor) -> Tensor:
        return codec.decode(codec.encode(x), x.shape[-1], compute_dtype(x.dtype))

    return round_trip


@dataclass
class Simulation:
    """A pass in progress. `packed_read_fraction` is the share of attended (query, key) pairs after the
    prefill that were packed."""

    layers: dict[int, tuple[_Tensor, _Tensor]]
    calls: tuple[int, ...]
    final: bool
    simulated: bool
    spans: dict[int, int] = field(default_factory=dict)
    """How many tokens each layer with a sliding window attends to."""
    pads: list[int] | None = None
    seen: int | None = None
    pairs: float = 0.0
    packed_pairs: float = 0.0
    _starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for size in self.calls:
            self._starts += [len(self._starts)] * size

    @property
    def packed_read_fraction(self) -> float:
        return self.packed_pairs / self.pairs if self.pairs else 0.0

    def begin_call(self, pads: list[int] | None, seen: int) -> None:
        """Left padding of the rows and tokens cached before this call, as the mask function is told."""
        self.pads, self.seen = pads, seen

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor | None:
        """Attention of one layer, `[B, Hq, Q, Dv]`; None where the layer is not quantized. `options` are
        those of the engines."""
        if isinstance(key, KVHandle) or isinstance(value, KVHandle):
            raise QuantKVError(
                "simulate() stands in for a quantized cache: call the model with a plain cache or none"
            )
        offset = key.shape[2] - query.shape[2] if self.seen is None else self.seen
        stop = offset + query.shape[2]
        self._count(layer, offset, stop)
        if layer not in self.layers:
            return None
        if key.shape[2] != stop:
            raise QuantKVError(
                f"simulate() needs every token's keys: layer {layer} gave {key.shape[2]} of {stop}; "
                "use a DynamicCache() made without a config, which drops nothing"
            )
        keys, values = (
            _Kept.make(tensor, x, self, offset)
            for tensor, x in zip(self.layers[layer], (key, value), strict=True)
        )
        exact, mask = max(0, self._exact_queries() - offset), options["mask"]
        parts = []
        if exact:
            parts.append(_plain(query[:, :, :exact], key, value, offset, options))
        step = max(8, BLOCK_SCORES // (query.shape[0] * query.shape[1] * key.shape[2]))
        for start in range(min(exact, query.shape[2]), query.shape[2], step):
            stop = min(start + step, query.shape[2])
            part = options | {"mask": None if mask is None else mask[:, :, start:stop]}
            parts.append(_mixed(query[:, :, start:stop], keys, values, (start, stop, offset), part))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def bounds(self, window: Window, queries: range) -> Tensor:
        """First exact position after the sinks for each query position: `[rows or 1, len(queries)]`, on the
        CPU."""
        cached = torch.tensor([self._cached(i) for i in queries])
        pads = torch.tensor(self.pads or [0])[:, None]
        return pads + window.boundary(cached[None] - pads)

    def _cached(self, i: int) -> int:
        """How many tokens were cached when the call that holds query `i` began; for `final`, what its first
        call left."""
        if i >= len(self._starts):
            return i
        return self.calls[0] if self.final and i < self.calls[0] else self._starts[i]

    def _exact_queries(self) -> int:
        """Queries of the first call attend to exact keys and values only, unless the prefill is `final`."""
        return self.calls[0] if self.calls and not self.final else 0

    def _count(self, layer: int, offset: int, stop: int) -> None:
        queries = range(max(offset, sum(self.calls)), stop)
        pads, positions = torch.tensor(self.pads or [0])[:, None], torch.tensor(queries, dtype=torch.long)
        first = torch.maximum(pads, positions + 1 - self.spans.get(layer, stop))
        self.pairs += 2 * float((positions + 1 - first).clamp_min(0).sum())
        for tensor in self.layers.get(layer, ()):
            start = torch.maximum(first, pads + tensor.window.sinks)
            self.packed_pairs += float((self.bounds(tensor.window, queries) - start).clamp_min(0).sum())


@dataclass(frozen=True, slots=True)
class _Kept:
    """One tensor of one layer, exact and as the cache decodes it, and where each query's exact tail
    begins."""

    exact: Tensor
    decoded: Tensor
    bounds: Tensor

    @classmethod
    def make(cls, tensor: _Tensor, x: Tensor, simulation: Simulation, offset: int) -> _Kept:
        bounds = simulation.bounds(tensor.window, range(offset, x.shape[2]))
        exact = x.to(compute_dtype(x.dtype))
        decoded = exact.clone()
        pads = simulation.pads or [0] * x.shape[0]
        for row_pad in sorted(set(pads)):
            rows = [row for row, pad in enumerate(pads) if pad == row_pad]
            first = row_pad + tensor.window.sinks
            last = int((bounds if len(bounds) == 1 else bounds[rows]).max())
            if first < last:
                decoded[rows, :, first:last] = tensor.round_trip(x[rows, :, first:last]).to(exact.dtype)
        return cls(exact, decoded, bounds)

    def tail(self, start: int, stop: int, end: int) -> tuple[int, Tensor]:
        """For queries `[start, stop)` (rows of `bounds`): the first position exact for any, and bool `[B|1,
        1, 1, q, end − first]`."""
        part = self.bounds[:, start:stop]
        first = min(int(part.min()), end)
        exact = torch.arange(first, end) >= part[..., None]
        return first, exact[:, None, None].to(self.exact.device)


def _plain(query: Tensor, key: Tensor, value: Tensor, offset: int, options: dict[str, Any]) -> Tensor:
    """The first call: exact attention, as the model computes it without a cache."""
    stop, mask = offset + query.shape[2], options["mask"]
    mask = None if mask is None else mask[:, :, : query.shape[2], :stop]
    key, value = key[:, :, :stop], value[:, :, :stop]
    if offset == 0 and options["softcap"] is None and options["sink_logits"] is None:
        same = {"is_causal": options["causal"], "scale": options["scaling"], "enable_gqa": True}
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, **same)
    return attend(query, PlainReadable(key), PlainReadable(value), **(options | {"mask": mask}))


def _mixed(
    query: Tensor, key: _Kept, value: _Kept, span: tuple[int, int, int], options: dict[str, Any]
) -> Tensor:
    """Queries `[start, stop)` of a call at `offset`, each with its own split into decoded and exact keys
    and values."""
    start, stop, offset = span
    end = offset + stop
    batch, q_heads, length, head_dim = query.shape
    heads = key.exact.shape[1]
    ratio = q_heads // heads
    scaling = options["scaling"] if options["scaling"] is not None else head_dim**-0.5
    q = query.to(key.exact.dtype).reshape(batch, heads, ratio * length, head_dim) * scaling
    scores = (q @ key.decoded[:, :, :end].transpose(-1, -2)).view(batch, heads, ratio, length, end)
    first, exact = key.tail(start, stop, end)
    precise = (q @ key.exact[:, :, first:end].transpose(-1, -2)).view(
        batch, heads, ratio, length, end - first
    )
    scores[..., first:] = torch.where(exact, precise, scores[..., first:])
    if options["softcap"] is not None:
        scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
    mask = options["mask"]
    scores = hide(scores, None if mask is None else mask[..., :end], False, 0, end)
    if options["causal"]:
        scores = scores.masked_fill(
            torch.ones(length, end, dtype=torch.bool, device=q.device).triu(end - length + 1), float("-inf")
        )
    weights = _softmax(scores, options["sink_logits"])
    first, exact = value.tail(start, stop, end)
    out = weights.flatten(2, 3) @ value.decoded[:, :, :end]
    correction = value.exact[:, :, first:end] - value.decoded[:, :, first:end]
    out += (weights[..., first:] * exact).flatten(2, 3) @ correction
    return out.view(batch, q_heads, length, -1).to(query.dtype)


def _softmax(scores: Tensor, sink_logits: Tensor | None) -> Tensor:
    """Softmax over keys of `[B, H, ratio, Q, T]`, sink logits `[Hq]` taking part without a value; rows
    without keys give zeros."""
    if sink_logits is not None:
        batch, heads, ratio, length, _ = scores.shape
        sinks = sink_logits.to(scores.dtype).view(1, heads, ratio, 1, 1).expand(batch, -1, -1, length, 1)
        return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    return torch.softmax(scores, -1).nan_to_num_(0.0)


@contextmanager
def simulate(
    model: PreTrainedModel,
    spec: str | CacheSpec | FakeQuant,
    *,
    prefill: int = 0,
    calls: Sequence[int] | None = None,
    prefill_reads: str = "exact",
) -> Iterator[Simulation]:
    """Inside, `model(ids)` returns what decoding token by token through the packed cache would have returned.

    `prefill=P`: the first P tokens came in one call, the rest one by one. `calls=[…]` instead gives the
    sizes of several prompt calls. `prefill_reads="final"`: the first call attends to what the store ends up
    holding. The model may be called with the whole sequence, or with a tail and a plain `DynamicCache` that
    holds exact keys and values of what came before. `spec` may also be a plain function `x -> x̂` on `[B,
    H, T, D]`.
    """
    if prefill_reads not in ("exact", "final"):
        raise QuantKVError(f"prefill_reads {prefill_reads!r}; legal: exact, final")
    if calls is not None and prefill:
        raise QuantKVError("give prefill or calls, not both")
    sizes = tuple(calls) if calls is not None else ((prefill,) if prefill else ())
    if prefill_reads == "final" and not sizes:
        raise QuantKVError("prefill_reads='final' needs a prefill")
    is_function = callable(spec) and not isinstance(spec, (str, CacheSpec))
    cache = QuantizedCache(model.config, "exact" if is_function else parse_spec(spec))  # type: ignore[arg-type]
    layers = _layers_of_function(cache, spec) if is_function else _layers(cache)  # type: ignore[arg-type]
    spans = {i: layer.sliding_window for i, layer in enumerate(cache.layers) if layer.is_sliding}
    simulation = Simulation(layers, sizes, prefill_reads == "final", is_function, spans)
    token = SIMULATION.set(simulation)
    try:
        with fused_attention(model):
            yield simulation
    finally:
        SIMULATION.reset(token)


def protocol_calls(prefill: str, context: int) -> dict[str, Any]:
    """Arguments of `simulate` for a prefill named as in the protocol: exact, final, stream or chunk:N, for
    a prompt of `context`."""
    if prefill == "exact":
        return {"prefill": context}
    if prefill == "final":
        return {"prefill": context, "prefill_reads": "final"}
    if prefill == "stream":
        return {"calls": [1] * context}
    name, _, size = prefill.partition(":")
    if name != "chunk" or not size.isdigit() or int(size) < 1:
        raise QuantKVError(f"prefill {prefill!r}; legal: exact, final, stream, chunk:N")
    whole, rest = divmod(context, int(size))
    return {"calls": [int(size)] * whole + ([rest] if rest else [])}


def _layers(cache: QuantizedCache) -> dict[int, tuple[_Tensor, _Tensor]]:
    return {
        i: (
            _Tensor(layer.spec.key_window, _codec_round_trip(layer.spec.key.build())),
            _Tensor(layer.spec.value_window, _codec_round_trip(layer.spec.value.build())),
        )
        for i, layer in enumerate(cache.layers)
        if layer in cache.quantized_layers
    }


def _layers_of_function(cache: QuantizedCache, function: FakeQuant) -> dict[int, tuple[_Tensor, _Tensor]]:
    tensor = _Tensor(_PLAIN_WINDOW, function)
    return dict.fromkeys(_layers(cache), (tensor, tensor))
