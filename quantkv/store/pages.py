"""Packed tokens of the rows of one tensor: a table of pages per row.

Full pages are immutable and shared by reference count, so select, repeat and fork move table entries only.
A shared open page is copied when one of its owners appends.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from quantkv.codecs import Stored
from quantkv.store.layout import PageLayout
from quantkv.store.pool import GONE, PagePool, allocate
from quantkv.store.row_state import RowState


class PageEngine(Protocol):
    """What a store asks of the engine that serves it. Stateless; one serves every store, and what it keeps
    for the pages of one hangs there (`opened`)."""

    @property
    def name(self) -> str:
        """As rows say it."""

    def layout(self, stored: Stored) -> PageLayout:
        """Where the fields of a page lie."""

    def open(self, stored: Stored, layout: PageLayout) -> Any:
        """What the engine keeps for the pages of one store."""

    def encode(self, pages: PageStore, rows: Sequence[int], start: int, x: Tensor) -> None:
        """Put `[len(rows), H, T, D]` into pages that are there, from token `start` of each row on."""

    def decode(
        self, pages: PageStore, rows: Sequence[int], start: int, stop: int, dtype: torch.dtype
    ) -> Tensor:
        """Tokens `[start, stop)` of `rows`, `[len(rows), H, stop - start, D]` in `dtype`."""

    def allocated(self, slab: Tensor) -> None:
        """New memory for pages is there, nothing in it yet."""


class PageStore:
    """Packed tokens of some rows. Token positions are counted from each row's first packed token."""

    def __init__(
        self,
        stored: Stored,
        engine: PageEngine,
        rows: int,
        device: torch.device,
        pool: PagePool | None = None,
    ) -> None:
        self.stored, self.engine, self.device = stored, engine, device
        self.layout = engine.layout(stored)
        self.row_state = RowState(stored, rows, device)
        self.pool = pool or PagePool(self.layout, rows, device, engine.allocated)
        self.pool.users.add(self)
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.used: list[int] = [0] * rows
        self.generation = 0  # grows whenever a table changes: what was looked up may be kept until then
        self._saturated: Tensor | int = 0
        self.opened = engine.open(stored, self.layout)
        # the finalizer keeps this very list of tables: it may be filled anew, not replaced
        weakref.finalize(self, _release_all, self.pool, self.tables).atexit = False

    @property
    def nbytes(self) -> int:
        return self.pool.nbytes + self.row_state.nbytes

    @property
    def saturated(self) -> int:
        """Stored numbers at the end of their dtype's range, as they were packed; read from the device."""
        return int(self._saturated)

    @saturated.setter
    def saturated(self, count: int) -> None:
        self._saturated = count

    def count(self, found: Tensor | int) -> None:
        """More saturated numbers; on other devices than a CPU they are not read back."""
        self._saturated = self._saturated + (int(found) if self.device.type == "cpu" else found)

    def storages(self) -> list[Tensor]:
        """Every tensor that pages and the state of rows keep alive."""
        return [*self.pool.slabs, *self.row_state.numbers.values()]

    def page_pointers(self, row: int, first: int = 0, last: int | None = None) -> list[int]:
        """Addresses of a row's pages `[first, last)`, 64-byte aligned; 0 where a page is gone."""
        return [self.pool.address(number) for number in self.tables[row][first:last]]

    def fork(self) -> PageStore:
        """A store that starts with the same tokens and pages; a page is freed once no fork lists it."""
        other = PageStore(self.stored, self.engine, len(self.tables), self.device, self.pool)
        other.row_state = self.row_state.clone()
        other.used, other._saturated = list(self.used), self._saturated
        for table in self.tables:
            self.pool.retain(table)
        other.tables[:] = [list(table) for table in self.tables]
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> PageStore:
        """A store on pages of its own: those that only forks list stay behind."""
        other = PageStore(self.stored, self.engine, len(self.tables), self.device)
        other.row_state = self.row_state.clone()
        numbers, tables = self._listed()
        other.restore([self.pool.record(n) for n in numbers], tables, self.used)
        other._saturated = self._saturated
        return other

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: kernels' objects are made anew."""
        records, tables = self.state()
        names = ("stored", "engine", "used", "saturated", "row_state")
        return {name: getattr(self, name) for name in names} | {"records": records, "tables": tables}

    def __setstate__(self, state: dict[str, Any]) -> None:
        records, tables = state["records"], state["tables"]
        self.__init__(state["stored"], state["engine"], len(tables), records.device)  # type: ignore[misc]
        self.row_state = state["row_state"].clone()
        self.restore(records, tables, state["used"])
        self.saturated = state["saturated"]

    def state(self) -> tuple[Tensor, list[list[int]]]:
        """The records of all listed pages `[pages, record_bytes]`, and the tables renumbered to them."""
        numbers, tables = self._listed()
        if not numbers:
            return allocate((0, self.layout.record_bytes), torch.uint8, self.device), tables
        return torch.stack([self.pool.record(n) for n in numbers]), tables

    def _listed(self) -> tuple[list[int], list[list[int]]]:
        """The pages that tables list, and the tables as places among them."""
        numbers = sorted({number for table in self.tables for number in table} - {GONE})
        place = {number: i for i, number in enumerate(numbers)} | {GONE: GONE}
        return numbers, [[place[n] for n in table] for table in self.tables]

    def renumber(self, places: dict[int, int]) -> None:
        """Pages of the pool have moved: `places` has the new number of each."""
        for table in self.tables:
            table[:] = [places.get(number, GONE) for number in table]
        self.generation += 1

    def trim(self) -> None:
        """Give memory back that no row and no fork needs any more."""
        self.pool.trim(max(1, len(self.tables)))

    def restore(self, records: Sequence[Tensor] | Tensor, tables: list[list[int]], used: list[int]) -> None:
        """Fill an empty store with what `state` gave."""
        numbers = self.pool.take(len(records))
        for number, record in zip(numbers, records, strict=True):
            self.pool.record(number).copy_(record)
        self.tables[:] = [[GONE if i == GONE else numbers[i] for i in table] for table in tables]
        for table in self.tables:
            self.pool.retain(table)
        self.pool.release(numbers)  # as taken: from here on only tables own them
        self.used = list(used)
        self.generation += 1

    @property
    def used_nbytes(self) -> int:
        """Bytes of records that hold tokens; an open page counts for its filled share."""
        page = self.layout.page_tokens
        tokens: dict[int, int] = {}
        for table, used in zip(self.tables, self.used, strict=True):
            for i, number in enumerate(table):
                if number != GONE:
                    tokens[number] = max(tokens.get(number, 0), min(page, used - i * page))
        return sum(tokens.values()) * self.layout.record_bytes // page + self.row_state.nbytes

    def reserve(self, tokens: Sequence[int]) -> None:
        """Have the memory that so many tokens of each row need."""
        if self.pool.user_left:
            self.trim()
        page = self.layout.page_tokens
        self.pool.reserve(sum(max(0, -(-n // page) - len(t)) for n, t in zip(tokens, self.tables)))

    def append(self, rows: Sequence[int], x: Tensor) -> None:
        """Encode `[len(rows), H, T, D]`, T whole groups, and add it to `rows`, equally long so far."""
        start, length = self.used[rows[0]], x.shape[-2]
        self._add_pages(rows, start, start + length)
        self.engine.encode(self, rows, start, x)
        for row in rows:
            self.used[row] = start + length  # last: until then no reader knows of the new tokens

    def read(self, rows: Sequence[int], start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Decoded tokens `[start, stop)` of `rows`: `[len(rows), H, stop - start, D]` in `dtype`."""
        return self.engine.decode(self, rows, start, stop, dtype)

    def fit(self, rows: Sequence[int], x: Tensor) -> None:
        """Fit the method's state on rows of which nothing is packed yet."""
        self.row_state.fit(rows, x)
        self.generation += 1

    def drop(self, row: int, pages: int) -> None:
        """Give up the first `pages` pages of a row, and never store those it has not reached."""
        table, gone = self.tables[row], [GONE] * pages
        self.generation += table[:pages] != gone
        self.pool.release(table[:pages])  # before the table forgets them
        table[:pages] = gone
        self.used[row] = max(self.used[row], pages * self.layout.page_tokens)

    def gone(self, row: int) -> int:
        """How many tokens at a row's start have been given up: whole pages."""
        table = self.tables[row]
        pages = next((i for i, number in enumerate(table) if number != GONE), len(table))
        return pages * self.layout.page_tokens

    def truncate(self, row: int, tokens: int) -> None:
        """Forget all but the first `tokens` tokens of a row; pages that are gone never come again."""
        tokens = max(tokens, self.gone(row))
        keep = -(-tokens // self.layout.page_tokens)
        self.pool.release(self.tables[row][keep:])
        self.tables[row] = self.tables[row][:keep]
        self.used[row] = tokens
        self.generation += 1

    def select(self, rows: Sequence[int]) -> None:
        """Make the rows be `rows` of the present ones, in order and with repeats: tables move, pages stay,
        unless there are fewer rows and memory is given back."""
        old = [list(table) for table in self.tables]
        for row in rows:
            self.pool.retain(old[row])
        for table in old:  # after that: a page that stays must have an owner all the time
            self.pool.release(table)
        self.tables[:] = [list(old[row]) for row in rows]
        self.used = [self.used[row] for row in rows]
        self.row_state.select(rows)
        self.generation += 1
        if len(rows) < len(old):
            self.trim()

    def _add_pages(self, rows: Sequence[int], start: int, stop: int) -> None:
        """Give every row the pages up to token `stop`, and an open page of its own."""
        page = self.layout.page_tokens
        if start % page:
            for row in rows:
                self._own_open_page(row)
        for _ in range(-(-start // page), -(-stop // page)):
            for row, number in zip(rows, self.pool.take(len(rows)), strict=True):
                self.pool.record(number).zero_()  # no reader ever meets bytes that nobody wrote
                self.tables[row].append(number)
            self.generation += 1

    def _own_open_page(self, row: int) -> None:
        number = self.tables[row][-1]
        if not self.pool.shared(number):
            return
        (copy,) = self.pool.take(1)
        self.pool.record(copy).copy_(self.pool.record(number))
        self.pool.release([number])  # after copying: a page without owners may be written by others
        self.tables[row][-1] = copy
        self.generation += 1


def _release_all(pool: PagePool, tables: list[list[int]]) -> None:
    for table in tables:
        pool.release(table)
    pool.user_left = True
