"""The closed form of a store's bytes, from shapes and lengths alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quantkv.codecs import Codec
from quantkv.policy import Window
from quantkv.store.layout import allocated_pages, page_layout, windowed_pages
from quantkv.store.tiles import Lanes


def tensor_nbytes(
    codec: Codec,
    window: Window,
    *,
    rows: int,
    num_heads: int,
    head_dim: int,
    length: int,
    dtype: torch.dtype,
    lanes: Lanes,
    pads: Sequence[int] | None = None,
    span: int | None = None,
) -> int:
    """Bytes that a `TensorStore` holds after `length` tokens were appended to `rows` rows, without forks or
    roll-backs
    (`span`: where only that many last tokens are kept):

        rows · heads · head_dim · itemsize · (sinks + recent + flush + reserve)  +  slabs of whole pages
    """
    room = window.sinks + window.capacity_at(length, max(pads or [0]))
    exact = rows * num_heads * head_dim * dtype.itemsize * room
    layout = page_layout(codec, num_heads, head_dim, dtype, lanes)
    needed = [-(-window.packed(length - pad) // layout.page_tokens) for pad in pads or [0] * rows]
    if span is not None:
        needed = [windowed_pages(max(needed), window, span, layout.page_tokens)] * rows
    slots = rows * allocated_pages(-(-sum(needed) // rows))
    return exact + slots * layout.record_bytes
