"""The memory behind page tables: slabs of fixed records that never move, counted by reference.

A pool serves one tensor (keys or values) of one layer, and every fork of it: a page lives as long as some
table lists it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from quantkv.store.layout import PageLayout, allocated_pages

GONE = -1
"""The place of a page in a table once its tokens are out of reach."""


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory that can always be written: what inference mode makes cannot, once outside it."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=dtype, device=device)


class PagePool:
    """Pages by number, counted across slabs. `unit` pages (one per row) are added at a time; `allocated` is
    told of each new slab."""

    def __init__(
        self, layout: PageLayout, unit: int, device: torch.device, allocated: Callable[[Tensor], None]
    ) -> None:
        self.layout, self.device, self.unit = layout, device, max(1, unit)
        self._allocated = allocated
        self.users: WeakSet[Any] = WeakSet()
        """The page stores whose tables list pages: they are told (`renumber`) when pages move."""
        self.user_left = False
        """Whether a user has gone since memory was last given back."""
        self.slabs: list[Tensor] = []
        self._first: list[int] = []  # number of the first page of each slab
        self._refs: list[int] = []
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        return sum(slab.untyped_storage().nbytes() for slab in self.slabs)

    def trim(self, unit: int) -> None:
        """Give memory back where more than a fifth of it has no owner: the pages that have one move into a
        new slab, as large as if nothing else had ever been here. `unit` is as for a new pool."""
        users, self.user_left = list(self.users), False  # none of them may go in the midst of this
        count = len(self._refs) - len(self._free)
        if 4 * len(self._refs) <= 5 * unit * allocated_pages(-(-count // unit)):
            return
        live = [number for number, owners in enumerate(self._refs) if owners]
        new = PagePool(self.layout, unit, self.device, self._allocated)
        new.take(count)
        for low, high, records in self.runs(live):
            new.slabs[0][low:high].copy_(records)
        new._refs[:count] = [self._refs[number] for number in live]
        self.unit, self.slabs, self._first = unit, new.slabs, new._first
        self._refs, self._free = new._refs, new._free
        places = {number: place for place, number in enumerate(live)}
        for user in users:
            user.renumber(places)

    def ensure(self, pages_per_row: int) -> None:
        """Allocate as much as `pages_per_row` pages of every row need."""
        self._reach(pages_per_row * self.unit)

    def reserve(self, count: int) -> None:
        """Have `count` unused pages. Many at once come in one piece, which large memory pages can back."""
        self._reach(len(self._refs) - len(self._free) + count)

    def take(self, count: int) -> list[int]:
        """`count` unused pages, each with one owner."""
        self.reserve(count)
        taken, self._free = self._free[:count], self._free[count:]
        for number in taken:
            self._refs[number] = 1
        return taken

    def retain(self, numbers: Iterable[int]) -> None:
        """One more owner for each page."""
        for number in numbers:
            if number != GONE:
                self._refs[number] += 1

    def release(self, numbers: Iterable[int]) -> None:
        """One owner less; pages without owners are used again."""
        for number in numbers:
            if number == GONE:
                continue
            self._refs[number] -= 1
            if self._refs[number] == 0:
                self._free.append(number)

    def shared(self, number: int) -> bool:
        return self._refs[number] > 1

    def address(self, number: int) -> int:
        """Where the bytes of a page lie in memory; 0 for a page that is gone."""
        if number == GONE:
            return 0
        slab = self._slab(number)
        return self.slabs[slab].data_ptr() + (number - self._first[slab]) * self.layout.record_bytes

    def record(self, number: int) -> Tensor:
        """The raw bytes of a page."""
        slab = self._slab(number)
        return self.slabs[slab][number - self._first[slab]]

    def runs(self, numbers: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of `numbers` whose pages lie together, with their records: views `[n, record_bytes]`."""
        edges = set(self._first)
        starts = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1] + 1 or n in edges]
        for low, high in pairwise([*starts, len(numbers)]):
            slab = self._slab(numbers[low])
            base = self._first[slab]
            first, last = numbers[low] - base, numbers[high - 1] + 1 - base
            yield low, high, self.slabs[slab][first:last]

    def _reach(self, pages: int) -> None:
        """Allocate so that there are `pages` pages: as many as had they come one by one."""
        total = len(self._refs)
        if pages <= total:
            return
        slots = self.unit * allocated_pages(-(-pages // self.unit)) - total
        slab = allocate((slots, self.layout.record_bytes), torch.uint8, self.device)
        self._allocated(slab)
        self.slabs.append(slab)
        self._first.append(total)
        self._refs += [0] * slots
        self._free += range(total, total + slots)

    def _slab(self, number: int) -> int:
        return bisect_right(self._first, number) - 1
