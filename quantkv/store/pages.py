"""Append-only packed memory of one tensor (keys or values) of one layer.

Pages live in slabs that never move. A row's table lists its pages; full pages are immutable and shared by reference count, so select,
repeat and fork move table entries only. A shared open page is copied when one of its owners appends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from quantkv.codecs import Codec
from quantkv.store.layout import PageLayout, next_slab_pages


class PageStore:
    """Packed tokens of `rows` rows. Token positions are counted from each row's first packed token."""

    def __init__(self, codec: Codec, layout: PageLayout, rows: int, device: torch.device) -> None:
        self.codec, self.layout, self.device = codec, layout, device
        self.unit = max(1, rows)
        self.slabs: list[Tensor] = []
        self._fields: list[dict[str, Tensor]] = []
        self._first: list[int] = []  # number of the first page of each slab
        self._refs: list[int] = []
        self._free: list[int] = []
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.used: list[int] = [0] * rows

    @property
    def nbytes(self) -> int:
        return sum(slab.untyped_storage().nbytes() for slab in self.slabs)

    @property
    def used_nbytes(self) -> int:
        """Bytes of records that hold tokens; an open page counts for its filled share."""
        page, tokens = self.layout.page_tokens, {}
        for table, used in zip(self.tables, self.used, strict=True):
            for i, number in enumerate(table):
                tokens[number] = max(tokens.get(number, 0), min(page, used - i * page))
        return sum(tokens.values()) * self.layout.record_bytes // page

    def append(self, rows: Sequence[int], x: Tensor) -> None:
        """Encode `[len(rows), H, T, D]` and add it to `rows`, which must hold equally many tokens; T is whole groups."""
        start, length = self.used[rows[0]], x.shape[-2]
        fields = self.codec.encode(x)
        page = self.layout.page_tokens
        self._reserve(rows, start, start + length)
        for index in range(start // page, -(-(start + length) // page)):
            low, high = max(start, index * page), min(start + length, (index + 1) * page)
            self._write(rows, index, (low, high), fields, start)
        for row in rows:
            self.used[row] = start + length

    def _write(
        self, rows: Sequence[int], index: int, span: tuple[int, int], fields: dict[str, Tensor], start: int
    ) -> None:
        """Copy tokens `span` of the encoded `fields`, whose first token is `start`, into page `index` of `rows`."""
        base = index * self.layout.page_tokens
        numbers = [self.tables[row][index] for row in rows]
        for first, last in self._runs(numbers):
            views = self._views(numbers[first], numbers[last - 1] + 1)
            for field in self.layout.fields:
                low, high = ((t - start) // field.tokens for t in span)
                to = (span[0] - base) // field.tokens
                source = fields[field.name][first:last, :, low:high]
                views[field.name][:, :, to : to + high - low].copy_(source)

    def read(self, rows: Sequence[int], start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Decoded tokens `[start, stop)` of `rows`: `[len(rows), H, stop - start, D]` in `dtype`."""
        layout, count = self.layout, len(rows)
        first, last = start // layout.page_tokens, -(-stop // layout.page_tokens)
        shape = (count, layout.num_heads, last - first, layout.page_tokens, layout.head_dim)
        out = torch.empty(shape, dtype=dtype, device=self.device)
        for low, _, fields in self.runs(rows, first, last):
            x = self.codec.decode(fields, layout.head_dim, dtype)
            for at, piece in _whole_pages(x, low, count):
                page, row = divmod(at, count)
                pages, wide = piece.shape[:2]
                out[row : row + wide, :, page : page + pages].copy_(piece.permute(1, 2, 0, 3, 4))
        base = first * layout.page_tokens
        return out.flatten(2, 3)[:, :, start - base : stop - base]

    def runs(
        self, rows: Sequence[int], first: int, last: int
    ) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """Fields `[n, heads, entries, width]` of pages `[first, last)` of `rows`, as views of what lies together in memory.

        Pages are counted page by page, rows innermost; each item is the range of that count, and its fields.
        """
        numbers = [self.tables[row][index] for index in range(first, last) for row in rows]
        for low, high in self._runs(numbers):
            yield low, high, self._views(numbers[low], numbers[high - 1] + 1)

    def truncate(self, row: int, tokens: int) -> None:
        """Forget all but the first `tokens` tokens of a row."""
        keep = -(-tokens // self.layout.page_tokens)
        self._release(self.tables[row][keep:])
        self.tables[row] = self.tables[row][:keep]
        self.used[row] = tokens

    def select(self, rows: Sequence[int]) -> None:
        """Make the rows be `rows` of the present ones, in order and with repeats: tables move, pages stay."""
        old = self.tables
        self.tables = [list(old[row]) for row in rows]
        self.used = [self.used[row] for row in rows]
        for table in self.tables:
            for number in table:
                self._refs[number] += 1
        for table in old:
            self._release(table)

    def _reserve(self, rows: Sequence[int], start: int, stop: int) -> None:
        """Give every row the pages up to token `stop`, and an open page of its own."""
        page = self.layout.page_tokens
        if start % page:
            for row in rows:
                self._own_open_page(row)
        for _ in range(-(-start // page), -(-stop // page)):
            for row, number in zip(rows, self._take(len(rows)), strict=True):
                self.tables[row].append(number)

    def _own_open_page(self, row: int) -> None:
        number = self.tables[row][-1]
        if self._refs[number] == 1:
            return
        (copy,) = self._take(1)
        self._record(copy).copy_(self._record(number))
        self._release([number])
        self.tables[row][-1] = copy

    def _take(self, count: int) -> list[int]:
        while len(self._free) < count:
            self._grow()
        taken, self._free = self._free[:count], self._free[count:]
        for number in taken:
            self._refs[number] = 1
        return taken

    def _grow(self) -> None:
        total = len(self._refs)
        slots = self.unit * next_slab_pages(total // self.unit)
        self.slabs.append(torch.empty(slots, self.layout.record_bytes, dtype=torch.uint8, device=self.device))
        self._fields.append(self.layout.views(self.slabs[-1]))
        self._first.append(total)
        self._refs += [0] * slots
        self._free += range(total, total + slots)

    def _release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._refs[number] -= 1
            if self._refs[number] == 0:
                self._free.append(number)

    def _slab(self, number: int) -> int:
        return bisect_right(self._first, number) - 1

    def _record(self, number: int) -> Tensor:
        slab = self._slab(number)
        return self.slabs[slab][number - self._first[slab]]

    def _views(self, first: int, last: int) -> dict[str, Tensor]:
        """Field views of pages `[first, last)`, which lie in one slab."""
        slab = self._slab(first)
        base = self._first[slab]
        return {name: view[first - base : last - base] for name, view in self._fields[slab].items()}

    def _runs(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Index ranges of `numbers` whose pages follow each other in one slab."""
        starts = [0]
        for i in range(1, len(numbers)):
            if numbers[i] != numbers[i - 1] + 1 or self._slab(numbers[i]) != self._slab(numbers[i - 1]):
                starts.append(i)
        return list(zip(starts, [*starts[1:], len(numbers)], strict=True))


def _whole_pages(x: Tensor, low: int, rows: int) -> Iterator[tuple[int, Tensor]]:
    """Cut pages `[n, H, P, D]`, counted from `low` with rows innermost, into blocks `[pages, rows, H, P, D]` that start at a row."""
    if low % rows == 0 and len(x) % rows == 0:
        yield low, x.unflatten(0, (-1, rows))
    else:
        yield from ((low + i, x[i, None, None]) for i in range(len(x)))
