"""What a query may read: a snapshot of one tensor's state, decoded piece by piece on request.

A view holds no copy. It stays readable until its store next changes, and raises after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quantkv.codecs import compute_dtype
from quantkv.errors import QuantKVError
from quantkv.store.window import Ring

if TYPE_CHECKING:
    from quantkv.store.tensor import TensorStore

SPAN_TOKENS = 2048
"""Readers take about this many tokens at a time, so that scratch memory is bounded."""


class View:
    """`visible[row]` packed tokens of each row are read decoded, everything after them exact. `stop` tokens
    in all."""

    def __init__(
        self, store: TensorStore, visible: list[int], stop: int, ring: Ring, extra: Tensor | None
    ) -> None:
        self.store, self.visible, self.stop = store, visible, stop
        self.ring, self.extra = ring, extra
        self.extra_from = stop - (0 if extra is None else extra.shape[-2])
        self._version = store.version

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.store.rows, self.store.heads, self.stop, self.store.head_dim

    def after_packing(self) -> View:
        """The same tokens as the store now holds them: what `prefill: final` reads."""
        visible = [self.store.packed(row, self.stop) for row in range(self.store.rows)]
        return View(self.store, visible, self.stop, self.ring, self.extra)

    def read(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Positions `[start, stop)` as `[B, H, stop − start, D]`: decoded where packed, zeros where
        padding."""
        self.check()
        if start < stop and (start < 0 or stop > self.stop):  # beyond it lies memory that nobody wrote
            raise QuantKVError(f"cannot read tokens {start} to {stop} of {self.stop}")
        dtype = dtype or self.store.dtype
        groups, (rows, heads, _, head_dim) = self.store.row_groups(), self.shape
        if len(groups) == 1 and start < stop:
            return self._read_rows(groups[0][1], groups[0][0], (start, stop), dtype)
        out = torch.empty(rows, heads, stop - start, head_dim, dtype=dtype, device=self.store.device)
        for pad, members in groups if start < stop else ():
            out[members] = self._read_rows(members, pad, (start, stop), dtype)
        return out

    def edges(self) -> list[int]:
        """Positions that cut the view into spans which readers take one by one, along page boundaries."""
        pad, rows = self.store.row_groups()[0]
        first, page = pad + self.store.window.sinks, self.store.pages.layout.page_tokens
        step = max(1, SPAN_TOKENS // page) * page
        packed_end = first + self.visible[rows[0]]
        before = range(0, min(first, self.stop), SPAN_TOKENS)
        inside = range(first + step, packed_end, step)
        tail = range(packed_end, self.stop, SPAN_TOKENS)
        return sorted({0, min(first, self.stop), *before, *inside, *tail, self.stop})

    def exact(self, start: int, stop: int, ring: Ring) -> Tensor:
        """Exact values of positions after the sinks, from the ring and the running call's own tensor: `[B,
        H, T, D]`."""
        parts = []
        if start < self.extra_from:
            parts.append(ring.read(start, min(stop, self.extra_from)))
        if stop > self.extra_from and self.extra is not None:
            low = max(start, self.extra_from) - self.extra_from
            parts.append(self.extra[:, :, low : stop - self.extra_from])
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)

    def _read_rows(self, rows: list[int], pad: int, span: tuple[int, int], dtype: torch.dtype) -> Tensor:
        start, stop = span
        store = self.store
        first = pad + store.window.sinks
        packed_end = first + self.visible[rows[0]]
        members = slice(None) if len(rows) == store.rows else rows
        parts = []
        if start < pad:
            _, heads, _, head_dim = self.shape
            parts.append(
                torch.zeros(
                    len(rows), heads, min(stop, pad) - start, head_dim, dtype=dtype, device=store.device
                )
            )
        low, high = max(start, pad), min(stop, first)
        if low < high:
            parts.append(store.sinks.buffer[members, :, low - pad : high - pad].to(dtype))
        low, high = max(start, first), min(stop, packed_end)
        if low < high:
            parts.append(store.pages.read(rows, low - first, high - first, compute_dtype(dtype)).to(dtype))
        low = max(start, packed_end)
        if low < stop:
            parts.append(self.exact(low, stop, self.ring)[members].to(dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)

    def check(self) -> None:
        if self._version != self.store.version:
            raise QuantKVError(
                "these keys or values belong to an earlier state of the cache: read them before its next "
                "update, crop or reorder"
            )


class Since:
    """A view without its first `start` positions: what a layer with a sliding window shows."""

    def __init__(self, view: View, start: int) -> None:
        self.view, self.start = view, start
        self.store, self.visible, self.stop = view.store, view.visible, view.stop - start

    @property
    def shape(self) -> tuple[int, int, int, int]:
        rows, heads, _, head_dim = self.view.shape
        return rows, heads, self.stop, head_dim

    def read(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.view.read(start + self.start, stop + self.start, dtype)

    def edges(self) -> list[int]:
        return sorted({max(0, edge - self.start) for edge in self.view.edges()})
