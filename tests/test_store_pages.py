"""Pages: where fields lie in a record, what partial writes leave alone, and what a kernel may keep."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from stores import CPU, DIM, HEADS, at_place, decode, encode, everything, new_store
from tile_rule import head_by_rule
from torch import Tensor

from quantkv import QuantKVError, parse_spec
from quantkv.codecs import Codec, Field, Place, Sparse, Stored, Tokens
from quantkv.codecs.place import Which
from quantkv.engines import engine_for
from quantkv.engines.choosing import REFERENCE
from quantkv.store import PageLayout, page_layout
from quantkv.store.pages import PageStore

TENSORS: tuple[Which, ...] = ("key", "value")
"""Keys have lanes of tokens, values of channels."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def layout_of(text: str, dim: int, which: Which, dtype: torch.dtype = torch.float32) -> PageLayout:
    return page_layout(at_place(parse_spec(text).key, which, dim=dim, dtype=dtype))


# --- one record ---
def lies_by_rule(layout: PageLayout, record: Tensor, name: str, x: Tensor) -> bool:
    """Whether every plane of `x` `[H, P, D]` lies where the layout says, as the rule of tiles says."""
    for plane, part in zip(layout.planes[name], parts_by_hand(layout, name, x), strict=True):
        size = plane.head_bytes
        heads = [record[plane.offset + h * size : plane.offset + (h + 1) * size] for h in range(HEADS)]
        expected = [head_by_rule(head.numpy(), plane.bits, layout.lanes) for head in part]
        if [head.tolist() for head in heads] != expected:
            return False
    return True


def parts_by_hand(layout: PageLayout, name: str, x: Tensor) -> list[Tensor]:
    """Each plane of a field, floats as their bit patterns: numpy knows no bfloat16."""
    if x.is_floating_point():
        return [x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize])]
    low = {3: 2, 5: 4, 6: 4}.get(sum(p.bits for p in layout.planes[name]), 8)
    return [x % 2**low, x // 2**low] if low < 8 else [x]


@pytest.mark.parametrize("which", TENSORS)
@pytest.mark.parametrize("dim", [8, 32, 40, 80])
@pytest.mark.parametrize("text", ["int3-head", "int4-channel@g32", "int6-token@g8", "fp8-e4m3", "bf16"])
def test_fields_lie_where_the_layout_says(text: str, dim: int, which: Which) -> None:
    """Written in three pieces into a record full of garbage."""
    layout = layout_of(text, dim, which)
    encoded = encode(parse_spec(text).key, torch.randn(1, HEADS, layout.page_tokens, dim))
    records = torch.full((1, layout.record_bytes), 255, dtype=torch.uint8)
    for start, stop in ((0, 32), (64, layout.page_tokens), (32, 64)):
        for field in layout.fields:
            low, high = start // field.tokens, stop // field.tokens
            layout.write(records, field, low, encoded[field.name][:, :, low:high])
    for name, field in layout.read(records).items():
        assert torch.equal(field, encoded[name])
        if name in layout.planes:
            assert lies_by_rule(layout, records[0], name, encoded[name][0])
        else:
            start, data = layout.offsets[name], encoded[name].contiguous().view(torch.uint8).flatten()
            assert torch.equal(records[0, start : start + len(data)], data)


@pytest.mark.parametrize("which", TENSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_pages_hold_any_dtype(dtype: torch.dtype, which: Which) -> None:
    layout = layout_of("exact", 24, which, dtype)
    x = torch.randn(2, HEADS, layout.page_tokens, 24).to(dtype)
    records = torch.zeros(2, layout.record_bytes, dtype=torch.uint8)
    layout.write(records, layout.fields[0], 0, x)
    assert layout.planes["values"][0].bits == 8 * dtype.itemsize
    assert torch.equal(layout.read(records)["values"], x)
    assert lies_by_rule(layout, records[1], "values", x[1])


class Everywhere(Codec):
    """Every value of a token and head at the channel of an index: no code, nothing tiled."""

    def fields(self, place: Place) -> tuple[Field, ...]:
        shape = place.num_heads, 1, place.head_dim
        return Field("index", torch.uint8, *shape), Field("value", torch.float32, *shape)

    def terms(self, place: Place) -> tuple[Sparse, ...]:
        return (Sparse("index", "value"),)

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        backwards = torch.arange(DIM - 1, -1, -1, dtype=torch.uint8).expand(x.shape)
        return {"index": backwards, "value": x.flip(-1)}


def test_a_codec_s_own_bytes_lie_plainly() -> None:
    store = PageStore(Stored(Everywhere(), Place("key", HEADS, DIM)), REFERENCE, 1, CPU)
    layout = store.layout
    assert (layout.planes, layout.offsets) == ({}, {"index": 0, "value": layout.page_tokens * HEADS * DIM})
    assert layout.record_bytes == layout.page_tokens * HEADS * DIM * 5
    x = torch.randn(1, HEADS, layout.page_tokens + 7, DIM)
    for part in x.split(50, 2):
        store.append([0], part)
    assert torch.equal(store.read([0], 0, x.shape[2], torch.float32), x)


def test_impossible_fields_are_refused() -> None:
    for bits, dtype in ((0, torch.uint8), (9, torch.uint8), (4, torch.int8)):
        with pytest.raises(QuantKVError, match="legal: uint8 codes of 1, 2, 3, 4, 5, 6, 7, 8"):
            Field("codes", dtype, HEADS, 1, DIM, bits)
    with pytest.raises(QuantKVError, match="'codes' needs elements of its own for each token"):
        Field("codes", torch.uint8, HEADS, 2, DIM, bits=4, tiled=True)


# --- bytes that nobody wrote ---
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("text", ["int4-head", "int3-channel@g16", "fp16", "exact"])
def test_garbage_in_fresh_memory_reaches_nobody(text: str, which: Which) -> None:
    """All ones are NaN as floats; what lies beyond the written tokens must not even be read as such."""
    spec = parse_spec(text, recent=0, flush=16, sinks=0)
    clean, dirty = new_store(spec, which), new_store(spec, which)
    dirty.pages.pool.ensure(1)
    dirty.pages.pool.slabs[0].fill_(255)
    x = torch.randn(1, HEADS, 48, DIM)
    for store in (clean, dirty):
        store.append(x)
    assert torch.equal(everything(clean), everything(dirty))
    pages = dirty.pages
    whole = decode(spec.key, pages.layout.read(pages.pool.record(0)[None]), x)
    assert torch.equal(whole[:, :, :48], everything(dirty)) and not whole[:, :, 48:].any()


# --- what a kernel may keep ---
def new_pages(rows: int = 2) -> tuple[PageStore, int]:
    """int8 pages of some rows, and how many tokens a page holds."""
    stored = at_place(parse_spec("int8-head").key)
    store = PageStore(stored, engine_for(stored, CPU)[0], rows, CPU)
    return store, store.layout.page_tokens


def tokens(count: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, HEADS, count, DIM)


def test_pointers_lead_to_records() -> None:
    store, page = new_pages()
    store.append([0, 1], tokens(3 * page))
    store.drop(1, 2)
    for row in (0, 1):
        pointers = store.page_pointers(row)
        assert all(pointer % 64 == 0 for pointer in pointers)
        assert [pointer == 0 for pointer in pointers] == [row == 1, row == 1, False]
        for pointer, number in zip(pointers, store.tables[row], strict=True):
            if pointer:
                held = ctypes.string_at(pointer, store.layout.record_bytes)
                assert list(held) == store.pool.record(number).tolist()


def test_many_pages_come_in_one_piece_and_are_as_many() -> None:
    at_once, page = new_pages()
    slowly, _ = new_pages()
    at_once.reserve([40 * page, 37 * page])
    for _ in range(40):
        slowly.append([0], tokens(page, 1))
    for _ in range(37):
        slowly.append([1], tokens(page, 1))
    assert len(at_once.pool.slabs) == 1 < len(slowly.pool.slabs)
    assert at_once.pool.nbytes == slowly.pool.nbytes
    at_once.append([0], tokens(40 * page, 1))
    at_once.append([1], tokens(37 * page, 1))
    assert len(at_once.pool.slabs) == 1


def test_generation_grows_when_a_table_changes_and_only_then() -> None:
    store, page = new_pages()
    steps: list[tuple[Any, bool]] = [
        (lambda: store.append([0, 1], tokens(page // 2)), True),  # the first page
        (lambda: store.append([0, 1], tokens(page // 4)), False),
        (lambda: store.read([0, 1], 0, page // 2, torch.float32), False),
        (lambda: store.select([0, 0]), True),
        (lambda: store.append([1], tokens(1, 1)), True),  # row 1 takes a copy of the shared open page
        (lambda: store.append([0], tokens(1, 1)), False),
        (lambda: store.append([0, 1], tokens(page)), True),  # the second page
        (lambda: store.drop(0, 1), True),
        (lambda: store.drop(0, 1), False),
        (lambda: store.truncate(1, page // 2), True),
    ]
    for index, (step, changes) in enumerate(steps):
        before = (store.generation, [store.page_pointers(row) for row in (0, 1)])
        step()
        assert (store.generation > before[0]) == changes, index
        assert changes or [store.page_pointers(row) for row in (0, 1)] == before[1], index


def test_generation_grows_when_tables_are_restored() -> None:
    store, page = new_pages()
    store.append([0, 1], tokens(page))
    records, tables = store.state()
    other, _ = new_pages()
    other.restore(records, tables, store.used)
    assert other.generation > 0
    assert torch.equal(*(s.read([0, 1], 0, page, torch.float32) for s in (store, other)))
