"""Attention of one layer in which every query has its own split of keys and values into decoded and exact.

Queries run in blocks, so that scores stay bounded: a block's scores are those of decoded keys, but for a
band at their end that reaches from the first position exact for any of its queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantkv.codecs import compute_dtype
from quantkv.engines import AttentionOptions, PlainReadable
from quantkv.engines.attention import attend, hide
from quantkv.policy import Window

RoundTrip = Callable[[Tensor, int, Sequence[int]], Tensor]
BLOCK_SCORES = 2**22
"""Attention scores computed at a time (16 MiB in float32)."""
LEAST_QUERIES, MOST_QUERIES = 8, 128


@dataclass(slots=True)
class Saturation:
    """How many stored numbers stood at the end of their dtype's range, over all that was packed."""

    numbers: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """How keys or values of a layer are stored: `round_trip` gives the first so many tokens of `[B, H, T,
    D]`, whole flush chunks, as the cache decodes them; it is told the position of each row's first one."""

    window: Window
    round_trip: RoundTrip
    positions: bool = False
    """Whether it needs to know positions."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Keys or values of one layer, `[B, H, T, D]`: exact, and as the cache decodes what it has packed, in
    the engines' dtype. `bounds` `[1|B, Q]` says where each query's exact tail begins."""

    exact: Tensor
    decoded: Tensor
    bounds: Tensor

    @classmethod
    def make(cls, storage: Storage, x: Tensor, pads: Tensor, bounds: Tensor, offsets: Sequence[int]) -> Kept:
        """Pack once what any query reads packed; `pads` `[1|B]`, `offsets` the position of each row's first
        real token."""
        decoded = x.to(compute_dtype(x.dtype), copy=True)
        for pad in pads.unique().tolist():
            members = range(len(x)) if len(pads) == 1 else (pads == pad).nonzero().flatten().tolist()
            rows = slice(None) if len(pads) == 1 else torch.tensor(members, device=x.device)
            first = pad + storage.window.sinks
            last = int((bounds if len(bounds) == 1 or len(pads) == 1 else bounds[pads == pad]).max())
            if first < last:
                begins = [offsets[row] + storage.window.sinks for row in members]
                packed = storage.round_trip(x[rows, :, first:], last - first, begins)
                decoded[rows, :, first:last] = packed.to(decoded.dtype)
        return cls(x, decoded, bounds)

    def rows(self, rows: slice) -> Kept:
        bounds = self.bounds if len(self.bounds) == 1 else self.bounds[rows]
        return Kept(self.exact[rows], self.decoded[rows], bounds)

    def band(self, start: int, stop: int, low: int, end: int) -> tuple[int, Tensor, Tensor]:
        """For queries `[start, stop)` over keys `[low, end)`: where exact tokens begin for any, these tokens
        from there on, and which each query reads so, bool `[1|B, 1, 1, q, end − first]`."""
        bounds = self.bounds[:, start:stop]
        first = max(low, min(int(bounds.min()), end))
        exact = torch.arange(first, end) >= bounds[..., None]
        values = self.exact[:, :, first:end].to(self.decoded.dtype)
        return first, values, exact[:, None, None].to(self.exact.device)


def mixed_attention(
    query: Tensor,
    key: Kept,
    value: Kept,
    groups: Sequence[tuple[slice, int]],
    offset: int,
    span: int | None,
    options: AttentionOptions,
) -> Tensor:
    """Attention of queries `[B, Hq, Q, D]` at `offset`: `[B, Hq, Q, Dv]`. In each group of rows so many
    queries, from the first on, attend to exact tokens only. `span` is a sliding window."""
    out = query.new_empty(*query.shape[:3], value.exact.shape[-1])
    for rows, exact in groups:
        keys, values = key.rows(rows), value.rows(rows)
        mask = options.mask
        own = replace(options, mask=mask if mask is None or len(mask) == 1 else mask[rows])
        if exact:
            out[rows, :, :exact] = _plain(query[rows, :, :exact], keys.exact, values.exact, offset, own)
        for start, stop in _blocks(query[rows], exact, offset):
            block = (start, stop, offset, span)
            out[rows, :, start:stop] = _mixed(query[rows, :, start:stop], keys, values, block, own)
    return out


def _blocks(query: Tensor, start: int, offset: int) -> list[tuple[int, int]]:
    """Queries from `start` on, so many at a time as keep the scores bounded."""
    blocks, heads, length = [], query.shape[0] * query.shape[1], query.shape[2]
    while start < length:
        fit = BLOCK_SCORES // (heads * (offset + start + 1))
        stop = min(length, start + max(LEAST_QUERIES, min(MOST_QUERIES, fit)))
        blocks.append((start, stop))
        start = stop
    return blocks


def _plain(query: Tensor, key: Tensor, value: Tensor, offset: int, options: AttentionOptions) -> Tensor:
    """The first call: exact attention, as the model computes it without a cache."""
    stop, mask = offset + query.shape[2], options.mask
    mask = None if mask is None else mask[:, :, : query.shape[2], :stop]
    key, value = key[:, :, :stop], value[:, :, :stop]
    if offset or options.softcap is not None or options.sink_logits is not None:
        return _in_blocks(query, key, value, offset, replace(options, mask=mask))
    grouped = mask is None  # with a mask sdpa has no fast kernel for grouped heads on every device
    if not grouped:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=options.causal, scale=options.scaling, enable_gqa=grouped
    )


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, offset: int, options: AttentionOptions) -> Tensor:
    """What sdpa does not offer, by the reference engine, a block of queries at a time."""
    parts, mask = [], options.mask
    for start, stop in _blocks(query, 0, offset):
        end = offset + stop
        own = replace(options, mask=None if mask is None else mask[:, :, start:stop, :end])
        keys, values = PlainReadable(key[:, :, :end]), PlainReadable(value[:, :, :end])
        parts.append(attend(query[:, :, start:stop], keys, values, own))
    return torch.cat(parts, 2)


def _mixed(
    query: Tensor, key: Kept, value: Kept, block: tuple[int, int, int, int | None], options: AttentionOptions
) -> Tensor:
    """Queries `[start, stop)` of a call at `offset`, each with its own split of keys and of values."""
    start, stop, offset, span = block
    end, mask = offset + stop, options.mask
    low = 0 if span is None or mask is None else max(0, offset + start + 1 - span)
    batch, q_heads, length, head_dim = query.shape
    heads = key.exact.shape[1]
    ratio = q_heads // heads
    q = query.to(key.decoded.dtype).reshape(batch, heads, ratio * length, head_dim) * options.scale(head_dim)
    shape = (batch, heads, ratio, length)
    scores = (q @ key.decoded[:, :, low:end].transpose(-1, -2)).view(*shape, end - low)
    first, tail, exact = key.band(start, stop, low, end)
    precise = (q @ tail.transpose(-1, -2)).view(*shape, end - first)
    scores[..., first - low :] = torch.where(exact, precise, scores[..., first - low :])
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if mask is not None:
        scores = hide(scores, mask[:, :, start:stop, :end], False, low, end)
    if options.causal:
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores[..., -length:].masked_fill_(later, float("-inf"))
    weights = _softmax(scores, options.sink_logits, mask is not None)
    first, tail, exact = value.band(start, stop, low, end)
    out = weights.flatten(2, 3) @ value.decoded[:, :, low:end]
    correction = tail - value.decoded[:, :, first:end]
    out += (weights[..., first - low :] * exact).flatten(2, 3) @ correction
    return out.view(batch, q_heads, length, -1).to(query.dtype)


def _softmax(scores: Tensor, sink_logits: Tensor | None, masked: bool) -> Tensor:
    """Softmax over keys of `[B, H, ratio, Q, T]`, sink logits `[Hq]` taking part without a value; queries
    that a mask lets see no key get zeros."""
    if sink_logits is not None:
        batch, heads, ratio, length, _ = scores.shape
        sinks = sink_logits.to(scores.dtype).view(1, heads, ratio, 1, 1).expand(batch, -1, -1, length, 1)
        return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    weights = torch.softmax(scores, -1)
    return weights.nan_to_num_(0.0) if masked else weights
