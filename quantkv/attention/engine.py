"""One call for every engine: the native kernels where they can serve, the PyTorch reference otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantkv.attention import native, reference
from quantkv.attention.reference import Readable
from quantkv.store import View

LONG_QUERY = 128
"""The reference takes so many queries at a time, so that scores stay bounded in long calls."""


def attend(
    query: Tensor,
    key: Readable,
    value: Readable,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    **options: Any,
) -> Tensor:
    """Attention of `query` `[B, Hq, Q, D]` over packed keys and values; arguments and result are those of
    `reference.attend`."""
    if isinstance(key, View) and isinstance(value, View):
        out = native.attend(query, key, value, mask=mask, causal=causal, **options)
        if out is not None:
            return out
    if query.shape[2] <= LONG_QUERY:
        return reference.attend(query, key, value, mask=mask, causal=causal, **options)
    return _by_query_blocks(query, key, value, mask, causal, options)


def _by_query_blocks(
    query: Tensor, key: Readable, value: Readable, mask: Tensor | None, causal: bool, options: dict[str, Any]
) -> Tensor:
    length, stop = query.shape[2], key.shape[2]
    if mask is None and causal:
        mask = torch.ones(length, stop, dtype=torch.bool, device=query.device).tril(stop - length)[None, None]
    parts = []
    for low in range(0, length, LONG_QUERY):
        rows = slice(low, low + LONG_QUERY)
        part = None if mask is None else mask[:, :, rows]
        parts.append(reference.attend(query[:, :, rows], key, value, mask=part, **options))
    return torch.cat(parts, 2)
