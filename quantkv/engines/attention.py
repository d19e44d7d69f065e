"""Attention in PyTorch: straight from pages, a bounded span at a time, with an online
softmax.

It accumulates in float32 (float64 for float64 queries) and never holds more of the history than one span in
decoded form. Every other engine is tested against it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from quantkv.codecs import compute_dtype
from quantkv.engines.inputs import PLAIN, AttentionOptions, Readable


class OnlineSoftmax:
    """Running softmax-weighted sum over spans of keys (Milakov & Gimelshein 2018): `[B, H, M, Dv]`, M query
    rows per KV head."""

    def __init__(
        self, shape: tuple[int, int, int], value_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.top = torch.full((*shape, 1), float("-inf"), dtype=dtype, device=device)
        self.total = torch.zeros_like(self.top)
        self.sum = torch.zeros(*shape, value_dim, dtype=dtype, device=device)

    def add(self, scores: Tensor, values: Tensor | None) -> None:
        """Scores `[B, H, M, T]` with values `[B, H, T, Dv]`; None for sink logits, which carry no value."""
        top = torch.maximum(self.top, scores.amax(-1, keepdim=True))
        safe = top.masked_fill(top == float("-inf"), 0.0)
        weights, shrink = (scores - safe).exp(), (self.top - safe).exp()
        self.total = self.total * shrink + weights.sum(-1, keepdim=True)
        self.sum = self.sum * shrink if values is None else self.sum * shrink + weights @ values
        self.top = top

    def result(self) -> Tensor:
        """Rows without any visible key come out as zeros."""
        return self.sum / self.total.masked_fill(self.total == 0, 1.0)


def attend(query: Tensor, key: Readable, value: Readable, options: AttentionOptions = PLAIN) -> Tensor:
    """Attention of `query` `[B, Hq, Q, D]` over packed keys and values: `[B, Hq, Q, Dv]` in its dtype."""
    batch, q_heads, length, head_dim = query.shape
    kv_heads, stop = key.shape[1:3]
    dtype = compute_dtype(query.dtype)
    ratio = q_heads // kv_heads
    q = query.to(dtype).reshape(batch, kv_heads, ratio * length, head_dim)
    q = q * options.scale(head_dim)
    state = OnlineSoftmax((batch, kv_heads, ratio * length), value.shape[-1], dtype, query.device)
    for start, end in pairwise(key.edges()):
        scores = q @ key.read(start, end, dtype).transpose(-1, -2)
        if options.softcap is not None:
            scores = torch.tanh(scores / options.softcap) * options.softcap
        scores = scores.view(batch, kv_heads, ratio, length, end - start)
        scores = hide(scores, options.mask, options.causal, start, stop)
        state.add(scores.flatten(2, 3), value.read(start, end, dtype))
    if options.sink_logits is not None:
        logits = options.sink_logits.to(dtype).view(1, kv_heads, ratio, 1, 1).expand(batch, -1, -1, length, 1)
        state.add(logits.flatten(2, 3), None)
    return state.result().to(query.dtype).view(batch, q_heads, length, -1)


def hide(scores: Tensor, mask: Tensor | None, causal: bool, start: int, stop: int) -> Tensor:
    """Apply the mask from `start` on, and causality, to scores `[B, H, ratio, Q, t]`; keys end at `stop`."""
    _, heads, ratio, length, width = scores.shape
    if mask is not None:
        part = mask[..., start : start + width]
        part = part.unsqueeze(2) if part.shape[1] == 1 else part.unflatten(1, (heads, ratio))
        scores = scores.masked_fill(~part, float("-inf")) if part.dtype == torch.bool else scores + part
    if causal and length > 1:
        last = torch.arange(length, device=scores.device)[:, None] + (stop - length)
        keys = torch.arange(start, start + width, device=scores.device)
        scores = scores.masked_fill(keys > last, float("-inf"))
    return scores
