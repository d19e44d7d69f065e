"""What a query may read: a snapshot of one tensor's state, decoded piece by piece on request.

A view holds no copy. It stays readable until its store next changes, and raises after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quantkv.codecs import compute_dtype
from quantkv.errors import QuantKVError
from quantkv.store.exact import Ring, Sinks
from quantkv.store.pages import PageStore

SPAN_TOKENS = 2048
"""Readers take about this many tokens at a time, so that scratch memory is bounded."""


@dataclass(slots=True)
class StoreTally:
    """What a store and all views of it count together."""

    changes: int = 0
    """Of the store: a view is readable until the next one."""
    materialized: int = 0
    """Views decoded whole, for an operation that cannot read pages."""


@dataclass(slots=True, eq=False)
class View:
    """Positions `[start, stop)` of each row: `visible[row]` packed tokens after the sinks are read decoded,
    all others exact, the last of them from `extra` where a call is longer than the ring. What `read` and
    `edges` name is counted from `start`."""

    pages: PageStore
    sinks: Sinks
    ring: Ring
    pads: list[int]
    visible: list[int]
    stop: int
    tally: StoreTally
    extra: Tensor | None = None
    start: int = 0
    extra_from: int = field(init=False)
    _made_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.extra_from = self.stop - (0 if self.extra is None else self.extra.shape[-2])
        self._made_at = self.tally.changes

    @property
    def dtype(self) -> torch.dtype:
        return self.ring.buffer.dtype

    @property
    def device(self) -> torch.device:
        return self.ring.buffer.device

    @property
    def shape(self) -> tuple[int, int, int, int]:
        layout = self.pages.layout
        return len(self.pads), layout.num_heads, self.stop - self.start, layout.head_dim

    def sliding(self, start: int) -> View:
        """The same without its first `start` positions: what a layer with a sliding window shows."""
        return replace(self, start=start)

    def after_packing(self) -> View:
        """The same tokens as pages hold them now: what `prefill: final` reads."""
        return replace(self, visible=list(self.pages.used))

    def read(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Positions `[start, stop)` as `[B, H, stop − start, D]`: decoded where packed, zeros for padding."""
        self.check()
        start, stop = start + self.start, stop + self.start
        if start < stop and (start < 0 or stop > self.stop):  # beyond it lies memory that nobody wrote
            raise QuantKVError(f"cannot read tokens {start} to {stop} of {self.stop}")
        dtype = dtype or self.dtype
        groups, (rows, heads, _, head_dim) = row_groups(self.pads), self.shape
        if len(groups) == 1 and start < stop:
            return self._read_rows(groups[0][1], groups[0][0], (start, stop), dtype)
        out = torch.empty(rows, heads, stop - start, head_dim, dtype=dtype, device=self.device)
        for pad, members in groups if start < stop else ():
            out[members] = self._read_rows(members, pad, (start, stop), dtype)
        return out

    def edges(self) -> list[int]:
        """Positions that cut the view into spans which readers take one by one, along page boundaries."""
        pad, rows = row_groups(self.pads)[0]
        first, page = pad + self.sinks.capacity, self.pages.layout.page_tokens
        step = max(1, SPAN_TOKENS // page) * page
        packed_end = first + self.visible[rows[0]]
        before = range(0, min(first, self.stop), SPAN_TOKENS)
        inside = range(first + step, packed_end, step)
        tail = range(packed_end, self.stop, SPAN_TOKENS)
        cuts = {0, min(first, self.stop), *before, *inside, *tail, self.stop}
        return sorted({max(0, cut - self.start) for cut in cuts})

    def exact(self, start: int, stop: int) -> Tensor:
        """Exact values `[B, H, T, D]` of positions after the sinks, from the ring and the running call."""
        parts = []
        if start < self.extra_from:
            parts.append(self.ring.read(start, min(stop, self.extra_from)))
        if stop > self.extra_from and self.extra is not None:
            low = max(start, self.extra_from) - self.extra_from
            parts.append(self.extra[:, :, low : stop - self.extra_from])
        return _joined(parts)

    def _read_rows(self, rows: list[int], pad: int, span: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Rows that share a pad count, piece after piece: padding, sinks, packed tokens, exact ones."""
        start, stop = span
        first = pad + self.sinks.capacity
        packed_end = first + self.visible[rows[0]]
        members = slice(None) if len(rows) == len(self.pads) else rows
        parts = []
        if start < pad:
            _, heads, _, head_dim = self.shape
            shape = (len(rows), heads, min(stop, pad) - start, head_dim)
            parts.append(torch.zeros(shape, dtype=dtype, device=self.device))
        low, high = max(start, pad), min(stop, first)
        if low < high:
            parts.append(self.sinks.buffer[members, :, low - pad : high - pad].to(dtype))
        low, high = max(start, first), min(stop, packed_end)
        if low < high:
            parts.append(self.pages.read(rows, low - first, high - first, compute_dtype(dtype)).to(dtype))
        low = max(start, packed_end)
        if low < stop:
            parts.append(self.exact(low, stop)[members].to(dtype))
        return _joined(parts)

    def check(self) -> None:
        if self._made_at != self.tally.changes:
            raise QuantKVError(
                "these keys or values belong to an earlier state of the cache: read them before its next "
                "update, crop or reorder"
            )


def row_groups(pads: Sequence[int]) -> list[tuple[int, list[int]]]:
    """(pads, rows) for the rows that share a pad count: those move in step."""
    groups: dict[int, list[int]] = {}
    for row, pad in enumerate(pads):
        groups.setdefault(pad, []).append(row)
    return list(groups.items())


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)
