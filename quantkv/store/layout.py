"""Where a page's fields lie in its record, and how many pages are allocated: everything that decides bytes,
as pure functions.

A page is one fixed byte record of one layer and one row, keys and values apart. It holds as many tokens as
make at least 4 KiB of data per head (the codec's group and 128 times a power of two), because smaller pieces
read well below streaming speed.

Tiled fields have panels of vectors (`tiles`), plane after plane; all others lie plainly, `[heads, entries,
width]`, codes below 8 bits in whole bytes for each head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantkv.codecs import Field, Stored
from quantkv.policy import Window
from quantkv.store.bits import pack_bits, packed_nbytes, unpack_bits
from quantkv.store.tiles import (
    KEY_LANES,
    PLANES,
    VALUE_LANES,
    Lanes,
    head_bytes,
    join_planes,
    split_planes,
    tile,
    untile,
)

PAGE_BYTES_PER_HEAD = 4096
TOKEN_MULTIPLE = 128
"""Whole panels of keys, and pieces of memory (scales and zeros too) that are not read one by one."""
ALIGNMENT = 64
"""Planes and fields start at cache-line boundaries, so that kernels may load them aligned."""
GROWTH = 8
"""A new slab is one page per row until this many exist, then 1/8 of what is allocated, which bounds slack."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of a tiled field: `bits` of each element, `[heads, head_bytes]` bytes from `offset` on."""

    bits: int
    offset: int
    head_bytes: int


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where each field lies, in bytes of a page's record: tiled ones in `planes`, the others in `offsets`."""

    fields: tuple[Field, ...]
    planes: dict[str, tuple[Plane, ...]]
    offsets: dict[str, int]
    lanes: Lanes
    page_tokens: int
    record_bytes: int
    num_heads: int
    head_dim: int

    @property
    def bits_per_element(self) -> float:
        """Effective bits of a full page, metadata, padding and alignment included."""
        return 8 * self.record_bytes / (self.page_tokens * self.num_heads * self.head_dim)

    def read(self, records: Tensor) -> dict[str, Tensor]:
        """Fields of pages `[n, record_bytes]` as `[n, heads, entries, width]`, perhaps in the same memory."""
        return {
            f.name: self._elements(records, f) if f.name in self.planes else self._plain(records, f)
            for f in self.fields
        }

    def write(self, records: Tensor, field: Field, at: int, x: Tensor) -> None:
        """Put `x` `[n, heads, entries, width]` at entry `at` of a field of pages `[n, record_bytes]`."""
        end = at + x.shape[2]
        if field.name in self.offsets:
            return self._write_plain(records, field, at, x)
        x = x.to(field.dtype)
        if x.shape[2] < self.page_tokens:
            page = self._elements(records, field)
            x = torch.cat([page[:, :, :at], x, page[:, :, end:]], 2)
        parts = [x] if field.bits is None else split_planes(x, field.bits)
        for plane, part in zip(self.planes[field.name], parts, strict=True):
            self._tiles(records, field, plane).copy_(tile(part, plane.bits, self.lanes))

    def _plain(self, records: Tensor, field: Field) -> Tensor:
        """A field that is not tiled, `[n, heads, entries, width]`: a view, of whole bytes."""
        data, shape = self._plain_bytes(records, field), field.shape(self.page_tokens)
        if field.bits is None:
            return data.view(field.dtype).unflatten(1, shape)
        codes = unpack_bits(data.unflatten(1, (field.heads, -1)), field.bits, shape[1] * shape[2])
        return codes.unflatten(-1, shape[1:])

    def _write_plain(self, records: Tensor, field: Field, at: int, x: Tensor) -> None:
        page = self._plain(records, field)
        page[:, :, at : at + x.shape[2]].copy_(x)
        if field.bits is not None:  # what was written is a copy
            packed = pack_bits(page.flatten(2), field.bits)
            self._plain_bytes(records, field).copy_(packed.flatten(1))

    def _plain_bytes(self, records: Tensor, field: Field) -> Tensor:
        start = self.offsets[field.name]
        return records[:, start : start + _plain_nbytes(field, self.page_tokens)]

    def _elements(self, records: Tensor, field: Field) -> Tensor:
        """A tiled field as `[n, H, page_tokens, width]`."""
        shape = self.lanes, self.page_tokens, field.width
        parts = [
            untile(self._tiles(records, field, plane), plane.bits, *shape, field.dtype)
            for plane in self.planes[field.name]
        ]
        return parts[0] if field.bits is None else join_planes(parts, field.bits)

    def _tiles(self, records: Tensor, field: Field, plane: Plane) -> Tensor:
        """The bytes of a plane, `[n, H, head_bytes]`, as a view."""
        size = field.heads * plane.head_bytes
        return records[:, plane.offset : plane.offset + size].unflatten(1, (field.heads, -1))


def page_layout(stored: Stored) -> PageLayout:
    """The layout of the pages of a method at its place: keys have lanes of tokens, values of channels."""
    place, fields = stored.place, stored.fields
    lanes = KEY_LANES if place.tensor == "key" else VALUE_LANES
    tokens = _page_tokens(fields, place.num_heads, stored.group_tokens)
    planes: dict[str, tuple[Plane, ...]] = {}
    offsets: dict[str, int] = {}
    end = 0
    for field in fields:
        if not field.tiled:
            offsets[field.name] = end
            end += -(-_plain_nbytes(field, tokens) // ALIGNMENT) * ALIGNMENT
            continue
        for bits in _plane_bits(field):
            plane = Plane(bits, end, head_bytes(bits, lanes, tokens, field.width))
            planes[field.name] = (*planes.get(field.name, ()), plane)
            end += field.heads * plane.head_bytes  # whole panels: a multiple of the alignment
    return PageLayout(fields, planes, offsets, lanes, tokens, end, place.num_heads, place.head_dim)


def _plane_bits(field: Field) -> tuple[int, ...]:
    """Bits of an element in each plane of a field."""
    return PLANES[field.bits] if field.bits else (8 * field.dtype.itemsize,)


def _plain_nbytes(field: Field, page_tokens: int) -> int:
    heads, entries, width = field.shape(page_tokens)
    if field.bits is None:
        return heads * entries * width * field.dtype.itemsize
    return heads * packed_nbytes(entries * width, field.bits)


def _page_tokens(fields: tuple[Field, ...], num_heads: int, group: int) -> int:
    multiple = math.lcm(group, TOKEN_MULTIPLE)
    bits = sum(f.heads * f.width * sum(_plane_bits(f)) for f in fields if f.tokens == 1)
    least = math.ceil(8 * PAGE_BYTES_PER_HEAD * num_heads / bits / multiple)
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


def tensor_nbytes(
    stored: Stored,
    window: Window,
    rows: int,
    length: int,
    *,
    pads: Sequence[int] | None = None,
    span: int | None = None,
) -> int:
    """Bytes that a `TensorStore` holds after `length` tokens, without forks or roll-backs; with `span` only
    that many last tokens are kept:

        rows · (heads · head_dim · itemsize · (sinks + recent + flush + reserve) + state)  +  slabs of pages
    """
    place, layout = stored.place, page_layout(stored)
    room = window.sinks + window.capacity_at(length, max(pads or [0]))
    exact = rows * place.num_heads * place.head_dim * place.dtype.itemsize * room
    state = rows * sum(4 * math.prod(shape) for shape in stored.state_shapes.values())
    needed = [-(-window.packed(length - pad) // layout.page_tokens) for pad in pads or [0] * rows]
    if span is not None:
        needed = [windowed_pages(max(needed), window, span, layout.page_tokens)] * rows
    slots = rows * allocated_pages(-(-sum(needed) // rows))
    return exact + state + slots * layout.record_bytes
