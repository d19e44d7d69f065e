"""The native engine for CPUs: pages are filled, decoded and attended to where they lie (`native/src`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quantkv.codecs import Stored
from quantkv.codecs.rounding import count_saturated
from quantkv.codecs.steps import Turn
from quantkv.engines import native
from quantkv.engines.inputs import AttentionOptions, Readable
from quantkv.engines.native import FLOATS
from quantkv.engines.program import page_format, refusal, state_names
from quantkv.engines.reference import Reference
from quantkv.errors import QuantKVError
from quantkv.store import PageLayout, View
from quantkv.store.pages import PageStore

MOST_QUERIES = 16
"""Longer calls decode a span at a time into scratch and multiply matrices instead."""
HUGE_SLAB = 1 << 22
"""Slabs of so many bytes ask the system for large memory pages: a head's pieces lie far apart, and looking up
where took a fifth of the time."""


class Opened:
    """What the kernels keep for the pages of one store."""

    def __init__(self, stored: Stored, layout: PageLayout) -> None:
        self.format = page_format(stored, layout)
        floats = [f.dtype for f in layout.fields if f.dtype.is_floating_point]
        self.largest = min((torch.finfo(dtype).max for dtype in floats), default=math.inf)
        self.states = state_names(stored)
        self.positioned = any(isinstance(step, Turn) for step in stored.steps)
        self.lossless = stored.place.dtype == layout.fields[0].dtype
        self._pages = native.kernels().Pages(self.format)
        self._told = -1

    def pages(self, store: PageStore) -> Any:
        """The tables as kernels read them."""
        if self._told != store.generation:
            rows = range(len(store.tables))
            tables = [store.page_pointers(row) for row in rows]
            self._pages.set(tables, self.positions(store, rows, 0), self.addresses(store, rows))
            self._told = store.generation
        return self._pages

    def positions(self, store: PageStore, rows: Sequence[int], start: int) -> list[int]:
        """Of token `start` of rows; none where no step asks."""
        return [store.row_state.first[row] + start for row in rows] if self.positioned else []

    def addresses(self, store: PageStore, rows: Sequence[int]) -> list[list[int]]:
        """Where the states of rows lie, state by state."""
        states = [store.row_state.numbers[name] for name in self.states]
        return [[state[row].data_ptr() for row in rows] for state in states]


class Cpu(Reference):
    def __reduce__(self) -> Any:
        """Where a pickle is opened there may be no kernels."""
        return _here, ()

    @property
    def name(self) -> str:
        return f"native-{native.isa()}"

    def refuses(self, stored: Stored, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"no native kernels for {device.type}"
        if native.kernels() is None:
            return "the native engine is switched off or was not built"
        if stored.place.dtype not in FLOATS:
            return f"no native kernels for {stored.place.dtype}"
        return refusal(stored)

    def open(self, stored: Stored, layout: PageLayout) -> Opened:
        return Opened(stored, layout)

    def allocated(self, slab: Tensor) -> None:
        if slab.nbytes >= HUGE_SLAB:
            native.kernels().want_huge_pages(slab.data_ptr(), slab.nbytes)

    def encode(self, pages: PageStore, rows: Sequence[int], start: int, x: Tensor) -> None:
        """Kernels store the same bits as a codec with a rule, but count nothing, so what reaches as far as a
        stored number can is left to it."""
        stored, opened = pages.stored, pages.opened
        if stored.codec.rule is None or x.dtype not in FLOATS:
            return super().encode(pages, rows, start, x)
        tokens = pages.row_state.tokens(rows, [start] * len(rows))
        y, fields = stored.mapped(x, tokens)
        if not (opened.lossless or y.abs().max().item() < opened.largest):
            return super().encode(pages, rows, start, x)
        pages.count(count_saturated(x, fields))
        self.write(pages, rows, start, y.shape[2], fields)
        self._encode(pages, rows, start, y)

    def _encode(self, pages: PageStore, rows: Sequence[int], start: int, x: Tensor) -> None:
        x = x if x.stride(-1) == 1 else x.contiguous()
        first, offset = divmod(start, pages.layout.page_tokens)
        records = [pages.page_pointers(row, first) for row in rows]
        native.kernels().encode(
            pages.opened.format, records, offset, x.data_ptr(), FLOATS[x.dtype], tuple(x.shape),
            x.stride()[:3], torch.get_num_threads(), native.isa(),
        )  # fmt: skip

    def decode(
        self, pages: PageStore, rows: Sequence[int], start: int, stop: int, dtype: torch.dtype
    ) -> Tensor:
        if dtype != torch.float32:
            return super().decode(pages, rows, start, stop, dtype)
        layout, page = pages.layout, pages.layout.page_tokens
        out = torch.empty(len(rows), layout.num_heads, stop - start, layout.head_dim)
        first, last = start // page, -(-stop // page)
        records = [pages.page_pointers(row, first, last) for row in rows]
        low, high = start - first * page, stop - first * page
        native.kernels().decode(
            pages.opened.format, records, low, high, out.data_ptr(), out.stride()[:3],
            torch.get_num_threads(), native.isa(), pages.opened.positions(pages, rows, first * page),
            pages.opened.addresses(pages, rows),
        )  # fmt: skip
        return out

    def attend(self, query: Tensor, key: Readable, value: Readable, options: AttentionOptions) -> Tensor:
        assert isinstance(key, View) and isinstance(value, View)
        if query.dtype not in FLOATS or query.shape[2] > MOST_QUERIES:
            return super().attend(query, key, value, options)
        return _attend(query, key, value, options)


def _here() -> Reference:
    return Reference() if native.kernels() is None else Cpu()


def _attend(query: Tensor, key: View, value: View, options: AttentionOptions) -> Tensor:
    _, q_heads, queries, head_dim = query.shape
    key.check()
    value.check()
    _check(query, key)
    query = query if query.stride(-1) == 1 else query.contiguous()
    mask, mask_strides = _mask(options.mask, query, key.stop - key.start)
    sinks = None if options.sink_logits is None else options.sink_logits.float().contiguous()
    logits = 0 if sinks is None else sinks.data_ptr()
    out = torch.empty(query.shape[0], queries, q_heads, value.shape[-1], dtype=query.dtype)
    native.kernels().attend(
        key.pages.opened.pages(key.pages), _exact(key), value.pages.opened.pages(value.pages), _exact(value),
        (key.pads, key.start, key.stop),
        (query.data_ptr(), FLOATS[query.dtype], query.stride()[:3], q_heads, queries),
        (options.scale(head_dim), options.softcap or 0.0, options.causal, logits),
        None if mask is None else (mask.data_ptr(), mask.dtype == torch.bool, mask_strides),
        out.data_ptr(), torch.get_num_threads(), native.isa(),
    )  # fmt: skip
    return out.transpose(1, 2)


def _check(query: Tensor, keys: View) -> None:
    """Raise where kernels would read beyond a tensor, or lose a gradient without a word."""
    rows, heads, _, head_dim = keys.shape
    if query.shape[0] != rows or query.shape[1] % heads or query.shape[3] != head_dim or not query.is_cpu:
        raise QuantKVError(
            f"a query of {list(query.shape)} on {query.device} does not fit keys of {rows} rows, "
            f"{heads} heads and {head_dim} channels on cpu"
        )
    if query.requires_grad and torch.is_grad_enabled():
        raise QuantKVError("a quantized cache carries no gradients: run under torch.no_grad()")


def _exact(view: View) -> tuple[list[int], int, int, int, int, int, int, int, tuple[int, ...]]:
    """Where a view's exact tokens lie, in the order that the kernel's binding names."""
    sinks, ring, extra = view.sinks, view.ring, view.extra
    if extra is not None and extra.stride(-1) != 1:
        extra = view.extra = extra.contiguous()
    return (
        view.visible, FLOATS[view.dtype], sinks.buffer.data_ptr(), sinks.capacity,
        ring.buffer.data_ptr(), ring.capacity, 0 if extra is None else extra.data_ptr(), view.extra_from,
        (0, 0, 0) if extra is None else extra.stride()[:3],
    )  # fmt: skip


def _mask(mask: Tensor | None, query: Tensor, stop: int) -> tuple[Tensor | None, list[int]]:
    """The mask as bool or float32, and its strides over `[B, Hq, Q, T]`."""
    if mask is None:
        return None, []
    if mask.dtype != torch.bool:
        mask = mask.float()
    strides = [0 if size == 1 else stride for size, stride in zip(mask.shape[:3], mask.stride()[:3])]
    legal = {1, query.shape[0]}, {1, query.shape[1]}, {1, query.shape[2]}
    if mask.shape[-1] < stop or any(size not in sizes for size, sizes in zip(mask.shape, legal)):
        raise QuantKVError(
            f"a mask of {list(mask.shape)} does not cover {list(query.shape[:3])} queries and {stop} keys"
        )
    return mask, [*strides, mask.stride(3)]
