"""One call for every engine: the native kernels where they can serve, the PyTorch reference otherwise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quantkv.attention import native, reference
from quantkv.attention.inputs import PLAIN, AttentionOptions, Readable
from quantkv.store import View

LONG_QUERY = 128
"""The reference takes so many queries at a time, so that scores stay bounded in long calls."""


def attend(query: Tensor, key: Readable, value: Readable, options: AttentionOptions = PLAIN) -> Tensor:
    """Attention of `query` `[B, Hq, Q, D]` over packed keys and values: `[B, Hq, Q, Dv]` in its dtype."""
    if isinstance(key, View) and isinstance(value, View):
        out = native.attend(query, key, value, options)
        if out is not None:
            return out
    if query.shape[2] <= LONG_QUERY:
        return reference.attend(query, key, value, options)
    return _by_query_blocks(query, key, value, options)


def _by_query_blocks(query: Tensor, key: Readable, value: Readable, options: AttentionOptions) -> Tensor:
    length, mask = query.shape[2], _whole_mask(query, key.shape[2], options)
    parts = []
    for low in range(0, length, LONG_QUERY):
        rows = slice(low, low + LONG_QUERY)
        own = replace(options, mask=None if mask is None else mask[:, :, rows], causal=False)
        parts.append(reference.attend(query[:, :, rows], key, value, own))
    return torch.cat(parts, 2)


def _whole_mask(query: Tensor, stop: int, options: AttentionOptions) -> Tensor | None:
    """One mask of every query that says what is causal too, as no block of queries can."""
    length, mask = query.shape[2], options.mask
    if mask is not None:
        mask = mask.expand(-1, -1, length, -1)[..., :stop]
    if not options.causal:
        return mask
    seen = torch.ones(length, stop, dtype=torch.bool, device=query.device).tril(stop - length)[None, None]
    if mask is None:
        return seen
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))
