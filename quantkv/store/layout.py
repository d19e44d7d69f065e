"""Where a page's fields lie in its record, and how many pages are allocated: everything that decides bytes,
as pure functions, and how kernels are told.

A page is one fixed byte record of one layer and one row, keys and values apart. It holds as many tokens as
make at least 4 KiB of data per head (the codec's group and 128 times a power of two), because smaller pieces
read well below streaming speed.

Fields with one element per head, token and channel are tiled (`tiles`), plane after plane; all others lie
plainly, `[heads, entries, width]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantkv import native
from quantkv.codecs import Codec, Field, Kernel, Sharing
from quantkv.errors import QuantKVError
from quantkv.policy import Window
from quantkv.store.tiles import PLANES, Lanes, head_bytes, join_planes, split_planes, tile, untile

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
            self._plain(records, field)[:, :, at:end].copy_(x)
            return
        x = x.to(field.dtype)
        if x.shape[2] < self.page_tokens:
            page = self._elements(records, field)
            x = torch.cat([page[:, :, :at], x, page[:, :, end:]], 2)
        parts = [x] if field.bits is None else split_planes(x, field.bits)
        for plane, part in zip(self.planes[field.name], parts, strict=True):
            self._tiles(records, plane).copy_(tile(part, plane.bits, self.lanes))

    def _plain(self, records: Tensor, field: Field) -> Tensor:
        """A field that is not tiled, `[n, heads, entries, width]`, as a view."""
        start = self.offsets[field.name]
        data = records[:, start : start + _plain_nbytes(field, self.page_tokens)]
        return data.view(field.dtype).unflatten(1, field.shape(self.page_tokens))

    def _elements(self, records: Tensor, field: Field) -> Tensor:
        """A tiled field as `[n, H, page_tokens, D]`."""
        parts = [
            untile(self._tiles(records, p), p.bits, self.lanes, self.page_tokens, self.head_dim, field.dtype)
            for p in self.planes[field.name]
        ]
        return parts[0] if field.bits is None else join_planes(parts, field.bits)

    def _tiles(self, records: Tensor, plane: Plane) -> Tensor:
        """The bytes of a plane, `[n, H, head_bytes]`, as a view."""
        size = self.num_heads * plane.head_bytes
        return records[:, plane.offset : plane.offset + size].unflatten(1, (self.num_heads, -1))


def page_layout(codec: Codec, num_heads: int, head_dim: int, dtype: torch.dtype, lanes: Lanes) -> PageLayout:
    """The layout of pages that hold tensors `[B, num_heads, T, head_dim]` of `dtype` under `codec`: keys have
    `lanes` "tokens", values "channels"."""
    fields = codec.fields(num_heads, head_dim, dtype)
    tokens = _page_tokens(fields, num_heads, codec.group_tokens)
    planes: dict[str, tuple[Plane, ...]] = {}
    offsets: dict[str, int] = {}
    end = 0
    for field in fields:
        if field.shape(tokens) != (num_heads, tokens, head_dim):
            _check_plain(field)
            offsets[field.name] = end
            end += -(-_plain_nbytes(field, tokens) // ALIGNMENT) * ALIGNMENT
            continue
        for bits in _plane_bits(field):
            plane = Plane(bits, end, head_bytes(bits, lanes, tokens, head_dim))
            planes[field.name] = (*planes.get(field.name, ()), plane)
            end += num_heads * plane.head_bytes  # whole panels: a multiple of the alignment
    return PageLayout(fields, planes, offsets, lanes, tokens, end, num_heads, head_dim)


def _plane_bits(field: Field) -> tuple[int, ...]:
    """Bits of an element in each plane of a field."""
    return PLANES[field.bits] if field.bits else (8 * field.dtype.itemsize,)


def _plain_nbytes(field: Field, page_tokens: int) -> int:
    return math.prod(field.shape(page_tokens)) * field.dtype.itemsize


def _check_plain(field: Field) -> None:
    if field.bits is not None:
        raise QuantKVError(
            f"the field {field.name!r} has bits, so it needs one code for each head, token and channel"
        )


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
    codec: Codec,
    window: Window,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    lanes: Lanes,
    length: int,
    *,
    pads: Sequence[int] | None = None,
    span: int | None = None,
) -> int:
    """Bytes that a `TensorStore` holds after `length` tokens, without forks or roll-backs. `shape` is (rows,
    heads, head_dim); with `span` only that many last tokens are kept:

        rows · heads · head_dim · itemsize · (sinks + recent + flush + reserve)  +  slabs of whole pages
    """
    rows, heads, head_dim = shape
    room = window.sinks + window.capacity_at(length, max(pads or [0]))
    exact = math.prod(shape) * dtype.itemsize * room
    layout = page_layout(codec, heads, head_dim, dtype, lanes)
    needed = [-(-window.packed(length - pad) // layout.page_tokens) for pad in pads or [0] * rows]
    if span is not None:
        needed = [windowed_pages(max(needed), window, span, layout.page_tokens)] * rows
    slots = rows * allocated_pages(-(-sum(needed) // rows))
    return exact + slots * layout.record_bytes


def page_format(layout: PageLayout, codec: Codec) -> Any:
    """The layout as native kernels know it, or None where there are none for this codec or these dtypes."""
    module, kernel = native.kernels(), codec.kernel()
    if kernel is not None:
        _check_kernel(layout, kernel)
    if module is None or kernel is None:
        return None
    elements, is_raw = layout.fields[0], kernel.number == "raw"
    scaled, sharing = kernel.sharing is not None, kernel.sharing or Sharing()
    metadata = next((f.dtype for f in layout.fields if f.name == "scale"), torch.float16)
    if metadata not in native.FLOATS or (is_raw and elements.dtype not in native.FLOATS):
        return None
    return module.Format(
        lanes_are_tokens=layout.lanes == "tokens", page_tokens=layout.page_tokens,
        heads=layout.num_heads, head_dim=layout.head_dim,
        planes=[(p.bits, p.offset, p.head_bytes) for p in layout.planes[elements.name]],
        code=kernel.number, centre=kernel.centre, unit=kernel.unit, outward=kernel.outward,
        table=list(kernel.table), value=_name(elements.dtype if is_raw else torch.float32),
        has_scale=scaled, scale_at=layout.offsets["scale"] if scaled else 0, meta=_name(metadata),
        has_zero=scaled and kernel.has_zero, zero_at=layout.offsets.get("zero", 0),
        share_tokens=sharing.tokens, share_channels=sharing.channels or layout.head_dim,
        all_heads=sharing.all_heads,
    )  # fmt: skip


def _check_kernel(layout: PageLayout, kernel: Kernel) -> None:
    """Raise where kernels would read other bytes than those of the fields."""
    elements, *numbers = layout.fields
    sharing, names = kernel.sharing or Sharing(), [field.name for field in numbers]
    wanted = [] if kernel.sharing is None else ["scale", *(["zero"] if kernel.has_zero else [])]
    entry = sharing.entry_shape(layout.num_heads, layout.head_dim), sharing.tokens
    if names != wanted:
        raise QuantKVError(f"the codec's kernel reads {wanted} beside codes, its fields are {names}")
    if any(((field.heads, field.width), field.tokens) != entry for field in numbers):
        raise QuantKVError(f"the codec's kernel shares scales as {sharing}, its fields {numbers} do not")
    if kernel.number == "table" and len(kernel.table) != 2 ** (elements.bits or 0):
        raise QuantKVError(f"a table of {len(kernel.table)} numbers for codes of {elements.bits} bits")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
