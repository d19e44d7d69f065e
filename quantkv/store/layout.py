"""How a page's fields lie in its record, and how many pages are allocated: everything that decides bytes,
as pure functions.

A page is one fixed byte record of one layer and one row, keys and values apart. It holds as many tokens as
make at least 4 KiB of data per head (the codec's group and 32 times a power of two), because smaller pieces
read well below streaming speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quantkv.codecs import Codec, Field
from quantkv.policy import Window

PAGE_BYTES_PER_HEAD = 4096
TOKEN_MULTIPLE = 32
ALIGNMENT = 64
"""Fields start at cache-line boundaries, so that kernels may load them aligned."""
GROWTH = 8
"""A new slab holds one page per row until this many exist, then one eighth of what is allocated: slack
stays below 1/8."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where each field of a page lies. `offsets` are bytes from the start of the record."""

    fields: tuple[Field, ...]
    offsets: tuple[int, ...]
    page_tokens: int
    record_bytes: int
    num_heads: int
    head_dim: int

    @property
    def bits_per_element(self) -> float:
        """Effective bits of a full page, metadata and alignment included."""
        return 8 * self.record_bytes / (self.page_tokens * self.num_heads * self.head_dim)

    def views(self, slab: Tensor) -> dict[str, Tensor]:
        """The fields of all pages of a slab `[slots, record_bytes]` as `[slots, heads, entries, width]`
        views."""
        return {
            f.name: slab[:, at : at + f.nbytes(self.page_tokens)]
            .view(f.dtype)
            .unflatten(1, f.shape(self.page_tokens))
            for f, at in zip(self.fields, self.offsets, strict=True)
        }


def page_layout(codec: Codec, num_heads: int, head_dim: int, dtype: torch.dtype) -> PageLayout:
    """The layout of pages that hold tensors `[B, num_heads, T, head_dim]` of `dtype` under `codec`."""
    fields = codec.fields(num_heads, head_dim, dtype)
    tokens = _page_tokens(fields, num_heads, codec.group_tokens)
    offsets, end = [], 0
    for field in fields:
        offsets.append(end)
        end += -(-field.nbytes(tokens) // ALIGNMENT) * ALIGNMENT
    return PageLayout(fields, tuple(offsets), tokens, end, num_heads, head_dim)


def _page_tokens(fields: tuple[Field, ...], num_heads: int, group: int) -> int:
    multiple = math.lcm(group, TOKEN_MULTIPLE)
    per_token_head = sum(f.nbytes(multiple) for f in fields if f.tokens == 1) / (multiple * num_heads)
    least = math.ceil(PAGE_BYTES_PER_HEAD / per_token_head / multiple)
    return multiple * 2 ** math.ceil(math.log2(max(1, least)))


def windowed_pages(pages: int, window: Window, span: int | None, page_tokens: int) -> int:
    """Pages per row that are live at most when only the last `span` tokens and the reserve are ever read."""
    if span is None:
        return pages
    return min(pages, -(-(span + 2 * window.reserve + 2) // page_tokens) + 1)


def next_slab_pages(pages_per_row: int) -> int:
    """How many pages per row the next slab holds when `pages_per_row` are allocated."""
    return max(1, pages_per_row // GROWTH)


def allocated_pages(pages_per_row: int) -> int:
    """Pages per row held once `pages_per_row` have been needed."""
    held = 0
    while held < pages_per_row:
        held += next_slab_pages(held)
    return held
