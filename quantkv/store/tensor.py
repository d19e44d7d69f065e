"""Everything one layer holds of one tensor (keys or values): sinks, packed pages and the exact tail, kept
by one policy.

Positions are counted over the whole row, left padding included. For a row with `p` pads the order is: pads
(nothing is stored), sinks `[p, p + S)`, packed `[p + S, p + b(n − p))`, exact after that. All lengths are
host integers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantkv.codecs import Stored, compute_dtype
from quantkv.policy import Window
from quantkv.store.exact import Ring, Sinks
from quantkv.store.layout import tensor_nbytes, windowed_pages
from quantkv.store.pages import PageEngine, PageStore
from quantkv.store.view import StoreTally, View, row_groups

ENCODE_TOKENS = 2048
"""A long prompt is encoded in spans of about this many tokens, so that temporaries stay bounded."""


class TensorStore:
    """Append-only store of `[B, H, T, D]` tensors; rows share one length and may differ in left padding."""

    def __init__(
        self,
        stored: Stored,
        window: Window,
        rows: int,
        device: torch.device,
        engine: PageEngine,
        pads: Sequence[int] | None = None,
    ) -> None:
        self.stored, self.window, self.dtype = stored, window, stored.place.dtype
        self.heads, self.head_dim = stored.place.num_heads, stored.place.head_dim
        dtype, shape = self.dtype, (rows, self.heads, self.head_dim)
        self.pages = PageStore(stored, engine, rows, device)
        self.offsets = [0] * rows
        self.ring = Ring(shape, window.capacity_at(0), dtype, device)
        self.sinks = Sinks(shape, window.sinks, dtype, device)
        self.pads = list(pads or [0] * rows)
        self.span: int | None = None
        """How many last tokens are ever read; None: all."""
        self.length = 0
        self.tally = StoreTally()
        self.packed_at: int | None = None
        """At how many tokens a history that waited for `window.after` was packed."""
        self.begins = 0
        """The first position that was ever told."""
        self._held_from = [pad + window.sinks for pad in self.pads]
        """From which position on the ring has each row's tokens exactly as they were given."""

    @property
    def rows(self) -> int:
        return len(self.pads)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, heads and width."""
        return self.rows, self.heads, self.head_dim

    @property
    def is_lossless(self) -> bool:
        """Whether packed tokens decode to what was given."""
        (*others, field) = self.pages.layout.fields
        return not self.stored.steps and not others and field.bits is None and field.dtype == self.dtype

    @property
    def device(self) -> torch.device:
        return self.ring.buffer.device

    @property
    def exact_nbytes(self) -> int:
        """Bytes of sinks, window and reserve."""
        return sum(t.untyped_storage().nbytes() for t in (self.ring.buffer, self.sinks.buffer))

    @property
    def nbytes(self) -> int:
        return self.exact_nbytes + self.pages.nbytes

    def predicted_nbytes(self, length: int | None = None) -> int:
        """The closed form of `nbytes` at `length` tokens (now, by default), if they were only appended."""
        length = self.length if length is None else length
        return tensor_nbytes(self.stored, self.window, self.rows, length, pads=self.pads, span=self.span)

    def storages(self) -> Iterable[Tensor]:
        """Every tensor that this store keeps alive."""
        return (self.ring.buffer, self.sinks.buffer, *self.pages.storages())

    def packed(self, row: int, length: int | None = None) -> int:
        """How many tokens of a row are packed when it holds `length` tokens (now, by default)."""
        return self.window.packed((self.length if length is None else length) - self.pads[row])

    def _packed_by_row(self, length: int) -> list[int]:
        return [self.window.packed(length - pad) for pad in self.pads]

    def view(self) -> View:
        """What a query may read now."""
        return self._view(self.length)

    def _view(self, stop: int, extra: Tensor | None = None) -> View:
        """`stop` tokens, packed as far as they are now; `extra` are those that the ring does not hold."""
        visible = self._packed_by_row(self.length)
        return View(self.pages, self.sinks, self.ring, self.pads, visible, stop, self.tally, extra)

    def append(self, x: Tensor) -> View:
        """Add `[B, H, T, D]`. The view shows the state before packing, with the new tokens exact."""
        self.tally.changes += 1  # earlier views end here; the new one, made below, does not
        if x.requires_grad:  # what is kept must not remember how it came about
            x = x.detach()
        length = self.length + x.shape[-2]
        long, room = x.shape[-2] > self.window.reserve + 1, self._room(length)
        if not long and room > self.ring.capacity:
            self._resize_ring(room)
        self.sinks.write(self.length, x, self.pads)
        if not long:  # a longer one would overwrite tokens that its queries read, and that are packed below
            self.ring.write(self.length, x)
        view = self._view(length, x if long else None)  # packed up to the boundary before this call
        self._pack(view, length)
        if long or room < self.ring.capacity:  # after packing, which reads tokens that a new ring drops
            self._renew_ring(view, length, room)
        self.length = length  # after all that asks how many tokens there were before
        reach = length - self.window.reserve
        self._held_from = [
            max(held, pad + self.window.boundary(reach - pad))
            for held, pad in zip(self._held_from, self.pads, strict=True)
        ]
        return view

    def _room(self, length: int) -> int:
        return self.window.capacity_at(length, max(self.pads, default=0))

    def _new_ring(self, capacity: int) -> Ring:
        return Ring(self.shape, capacity, self.dtype, self.device)

    def _renew_ring(self, view: View, length: int, room: int) -> None:
        """Keep the newest tokens in a new ring: the old one and a long call's tensor belong to the view."""
        start = max(0, length - room)
        self.ring = self._new_ring(room)
        self.ring.write(start, view.exact(start, length))

    def _resize_ring(self, capacity: int) -> None:
        """A ring of another capacity with the newest tokens of this one."""
        start = max(0, self.length - min(capacity, self.ring.capacity))
        old, self.ring = self.ring, self._new_ring(capacity)
        if start < self.length:
            self.ring.write(start, old.read(start, self.length))

    def _pack(self, view: View, length: int) -> None:
        """Pack what the policy no longer keeps exact at `length` tokens, as `view` shows it."""
        packed = self._packed_by_row(length)
        if packed == self.pages.used and not self.pages.pool.user_left:  # as in most decode steps
            return
        self.pages.reserve(packed)
        for pad, rows in row_groups(self.pads):
            done, todo = self.pages.used[rows[0]], packed[rows[0]]
            if todo:
                self._fit(view, pad, rows)
            span = -(-ENCODE_TOKENS // self.window.flush) * self.window.flush
            for low in range(done, todo, span):
                first, high = pad + self.window.sinks, min(todo, low + span)
                x = view.exact(first + low, first + high)
                self.pages.append(rows, x if len(rows) == self.rows else x[rows])
        if self.window.after and self.packed_at is None and any(self.pages.used):
            self.packed_at = length

    def _fit(self, view: View, pad: int, rows: list[int]) -> None:
        """Fit rows that have no state yet on their first tokens after the sinks, all of them exact still."""
        new = [row for row in rows if not self.pages.row_state.fitted[row]]
        if new:
            first = pad + self.window.sinks
            self.pages.fit(new, view.exact(first, first + self.stored.fit_tokens)[new])

    def evict(self, before: int, length: int) -> None:
        """Free pages of positions below `before`, which nobody reads once `length` tokens are held."""
        page, packed = self.pages.layout.page_tokens, self._packed_by_row(length)
        for row, pad in enumerate(self.pads):
            pages = min(before - pad - self.window.sinks, packed[row]) // page
            if pages > 0:
                self.pages.drop(row, pages)
        self.pages.pool.ensure(windowed_pages(-(-max(packed) // page), self.window, self.span, page))

    @property
    def readable_from(self) -> int:
        """The first position that every row holds: earlier ones were never told, or their pages are gone."""
        gone = [self.pages.gone(row) for row in range(self.rows)]
        return max(self.begins, *(pad + self.window.sinks + n for pad, n in zip(self.pads, gone) if n), 0)

    def skip(self, before: int, length: int) -> int:
        """Begin an empty store of a sequence of `length` behind tokens below `before`, which nobody will
        read. Returns the position from which on tokens are to be added: a page's first."""
        self.evict(before, length)
        self.begins, self.length = before, self.pages.used[0]
        return self.length

    @property
    def offsets(self) -> list[int]:
        """The position of each row's first real token."""
        return [first - self.window.sinks for first in self.pages.row_state.first]

    @offsets.setter
    def offsets(self, offsets: Sequence[int]) -> None:
        first = [offset + self.window.sinks for offset in offsets]
        self.pages.generation += first != self.pages.row_state.first
        self.pages.row_state.first = first

    def extend_padding(self, pads: Sequence[int]) -> None:
        """Padding as known now, for rows that hold nothing else yet: prompts in chunks shorter than it."""
        if len(pads) != self.rows:
            return
        self.tally.changes += 1
        for row, pad in enumerate(pads):
            if self.length <= self.pads[row] < pad:
                self.pads[row], self._held_from[row] = pad, pad + self.window.sinks

    def truncate(self, length: int) -> int:
        """Keep the first `length` tokens. Returns how many rows took decoded values for exact ones (deep)."""
        self.tally.changes += 1
        length = min(length, self.length)
        if self._room(length) > self.ring.capacity:  # before rows put decoded tokens there
            self._resize_ring(self._room(length))
        deep = sum(self._truncate_row(row, pad, length) for row, pad in enumerate(self.pads))
        self.length = length
        for row, pad in enumerate(self.pads):
            if self.length - pad < self.window.sinks + self.stored.fit_tokens:
                self.pages.row_state.forget(row)
            if pad > self.length:  # the row begins anew: what follows may be real
                self.pads[row], self._held_from[row] = self.length, self.length + self.window.sinks
        self.pages.trim()
        if self._room(length) < self.ring.capacity:  # after `length` says which tokens are the newest
            self._resize_ring(self._room(length))
        return deep

    def _truncate_row(self, row: int, pad: int, length: int) -> int:
        keep = self.packed(row, length)
        if keep >= self.pages.used[row]:
            return 0
        first = pad + self.window.sinks
        low = first + max(keep, self.pages.gone(row))
        high = min(length, self._held_from[row])
        if low < high:
            x = self.pages.read([row], low - first, high - first, compute_dtype(self.dtype)).to(self.dtype)
            self.ring.write(low, x, [row])
        self._held_from[row] = min(self._held_from[row], low)
        self.pages.truncate(row, keep)  # after the read above: these pages are given back
        return int(low < high)

    def select(self, rows: Sequence[int]) -> None:
        """Reorder, drop or repeat rows: page tables and the exact tokens move, packed bytes do not."""
        self.tally.changes += 1
        self.ring.select(rows)
        self.sinks.select(rows)
        self.pages.select(rows)
        self.pads = [self.pads[row] for row in rows]
        self._held_from = [self._held_from[row] for row in rows]

    def set_reserve(self, reserve: int) -> None:
        """Hold more (or fewer) exact tokens for roll-back from now on."""
        self.tally.changes += 1
        self.window = replace(self.window, reserve=reserve)
        self._resize_ring(self._room(self.length))

    def fork(self) -> TensorStore:
        """A store with the same tokens: pages are shared until one of the two appends, the rest is copied."""
        other = copy.copy(self)
        other.pages = self.pages.fork()
        other.ring, other.sinks = self.ring.clone(), self.sinks.clone()
        other.pads, other._held_from = list(self.pads), list(self._held_from)
        other.tally = replace(self.tally)
        return other

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain numbers from which `restore` makes the same store again."""
        records, tables = self.pages.state()
        numbers = {
            "length": self.length,
            "reserve": self.window.reserve,
            "pads": self.pads,
            "held_from": self._held_from,
            "tables": tables,
            "used": self.pages.used,
            "begins": self.begins,
            "saturated": self.pages.saturated,
            "packed_at": self.packed_at,
            "fitted": self.pages.row_state.fitted,
            "first": self.pages.row_state.first,
        }
        state = {f"state.{name}": x for name, x in self.pages.row_state.numbers.items()}
        return {"pages": records, "ring": self.ring.buffer, "sinks": self.sinks.buffer} | state, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Fill an empty store of the same method, window and shape."""
        self.set_reserve(numbers["reserve"])
        state = self.pages.row_state
        state.fitted, state.first = list(numbers["fitted"]), list(numbers["first"])
        for name, held in state.numbers.items():
            held.copy_(tensors[f"state.{name}"])
        self.pages.restore(tensors["pages"], numbers["tables"], numbers["used"])
        self.ring = self._new_ring(tensors["ring"].shape[2])
        self.ring.buffer.copy_(tensors["ring"])
        self.sinks.buffer.copy_(tensors["sinks"])
        self.length, self._held_from = numbers["length"], list(numbers["held_from"])
        self.begins = numbers["begins"]
        self.pages.saturated, self.packed_at = numbers["saturated"], numbers["packed_at"]
