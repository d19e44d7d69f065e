"""The PyTorch engine: serves every method on every device, and is what all others are tested against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantkv.codecs import Stored
from quantkv.codecs.rounding import count_saturated
from quantkv.engines import attention
from quantkv.engines.inputs import AttentionOptions, Readable
from quantkv.store import PageLayout, page_layout
from quantkv.store.pages import PageStore

LONG_QUERY = 128
"""So many queries are taken at a time, so that scores stay bounded in long calls."""


class Reference:
    @property
    def name(self) -> str:
        return "reference"

    def layout(self, stored: Stored) -> PageLayout:
        return page_layout(stored)

    def refuses(self, stored: Stored, device: torch.device) -> str | None:
        return None

    def open(self, stored: Stored, layout: PageLayout) -> Any:
        return None

    def allocated(self, slab: Tensor) -> None:
        """Memory is taken as it comes."""

    def encode(self, pages: PageStore, rows: Sequence[int], start: int, x: Tensor) -> None:
        fields = pages.stored.encode(x, pages.row_state.tokens(rows, [start] * len(rows)))
        pages.count(count_saturated(x, fields))
        self.write(pages, rows, start, x.shape[2], fields)

    def write(
        self, pages: PageStore, rows: Sequence[int], start: int, length: int, fields: dict[str, Tensor]
    ) -> None:
        """Put these fields of `length` tokens from `start` of each row on into their pages."""
        layout, page = pages.layout, pages.layout.page_tokens
        for index in range(start // page, -(-(start + length) // page)):
            span = max(start, index * page), min(start + length, (index + 1) * page)
            for first, last, records in pages.pool.runs([pages.tables[row][index] for row in rows]):
                for field in (f for f in layout.fields if f.name in fields):
                    low, high = ((t - start) // field.tokens for t in span)
                    entries = fields[field.name][first:last, :, low:high]
                    layout.write(records, field, (span[0] - index * page) // field.tokens, entries)

    def decode(
        self, pages: PageStore, rows: Sequence[int], start: int, stop: int, dtype: torch.dtype
    ) -> Tensor:
        layout, count = pages.layout, len(rows)
        first, last = start // layout.page_tokens, -(-stop // layout.page_tokens)
        shape = (count, layout.num_heads, last - first, layout.page_tokens, layout.head_dim)
        out = torch.empty(shape, dtype=dtype, device=pages.device)
        places = [(row, index) for index in range(first, last) for row in rows]
        for low, high, records in pages.pool.runs([pages.tables[row][index] for row, index in places]):
            starts = [index * layout.page_tokens for _, index in places[low:high]]
            tokens = pages.row_state.tokens([row for row, _ in places[low:high]], starts)
            x = pages.stored.decode(layout.read(records), tokens, dtype)
            for at, piece in _whole_pages(x, low, count):
                page, row = divmod(at, count)
                wide, deep = piece.shape[:2]
                out[row : row + deep, :, page : page + wide].copy_(piece.permute(1, 2, 0, 3, 4))
        base = first * layout.page_tokens
        return out.flatten(2, 3)[:, :, start - base : stop - base]

    def attend(self, query: Tensor, key: Readable, value: Readable, options: AttentionOptions) -> Tensor:
        if query.shape[2] <= LONG_QUERY:
            return attention.attend(query, key, value, options)
        length, mask, parts = query.shape[2], _whole_mask(query, key.shape[2], options), []
        for low in range(0, length, LONG_QUERY):
            rows = slice(low, low + LONG_QUERY)
            own = replace(options, mask=None if mask is None else mask[:, :, rows], causal=False)
            parts.append(attention.attend(query[:, :, rows], key, value, own))
        return torch.cat(parts, 2)


def _whole_pages(x: Tensor, low: int, rows: int) -> Iterator[tuple[int, Tensor]]:
    """Cut pages `[n, H, P, D]` from `low` on, rows innermost, into blocks `[pages, rows, H, P, D]`."""
    if low % rows == 0 and len(x) % rows == 0:
        yield low, x.unflatten(0, (-1, rows))
    else:
        yield from ((low + i, x[i, None, None]) for i in range(len(x)))


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
