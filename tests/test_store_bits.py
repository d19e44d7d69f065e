"""Codes that are not tiled: packed plane after plane in whole bytes, and written at any entry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import CPU
from torch import Tensor

from quantkv.codecs import Codec, Codes, Field, Place, Plain, Scale, Sharing, Stored, Tokens
from quantkv.engines.choosing import REFERENCE
from quantkv.store import page_layout
from quantkv.store.bits import pack_bits, packed_nbytes, unpack_bits
from quantkv.store.pages import PageStore

WIDTHS = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
HEADS, DIM = 2, 16


def packed_by_hand(codes: list[int], bits: int) -> list[int]:
    """Each plane as one large number, its first code lowest, cut into bytes."""
    data: list[int] = []
    for width in WIDTHS[bits]:
        whole = sum((code % 2**width) << (width * i) for i, code in enumerate(codes))
        codes = [code // 2**width for code in codes]
        data += whole.to_bytes(-(-len(codes) * width // 8), "little")
    return data


@settings(max_examples=150, deadline=None)
@given(data=st.data(), bits=st.sampled_from(list(WIDTHS)), count=st.integers(1, 70))
def test_codes_are_packed_as_by_hand(data: st.DataObject, bits: int, count: int) -> None:
    rows = [data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count)) for _ in "ab"]
    codes = torch.tensor(rows, dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.tolist() == [packed_by_hand(row, bits) for row in rows]
    assert packed.shape[-1] == packed_nbytes(count, bits)
    assert torch.equal(unpack_bits(packed, bits, count), codes)


def test_known_bytes() -> None:
    """Codes 1, 2, 3 of 3 bits: low planes 1, 2, 3 are 0b111001, high planes 0, 0, 0. Of 6 and 5 bits: 33 is
    1 + 2 · 16, 62 is 14 + 3 · 16, 17 is 1 + 1 · 16."""
    assert pack_bits(torch.tensor([1, 2, 3], dtype=torch.uint8), 3).tolist() == [0b111001, 0]
    assert pack_bits(torch.tensor([33, 62], dtype=torch.uint8), 6).tolist() == [0xE1, 0b1110]
    assert pack_bits(torch.tensor([17], dtype=torch.uint8), 5).tolist() == [1, 1]


# --- in pages ---
class PlainCodes(Codec):
    """Floats of a block over a whole number, which is stored in a few bits and counts in halves."""

    def __init__(self, bits: int, group: int, all_heads: bool) -> None:
        self.bits, self.group_tokens = bits, group
        self.sharing = Sharing(tokens=group, channels=8, all_heads=all_heads)

    def fields(self, place: Place) -> tuple[Field, ...]:
        heads, width = self.sharing.entry_shape(place.num_heads, place.head_dim)
        shared = Field("times", torch.uint8, heads, self.sharing.tokens, width, self.bits)
        return Field("values", torch.float32, place.num_heads, 1, place.head_dim, tiled=True), shared

    def terms(self, place: Place) -> tuple[Codes, ...]:
        return (Codes("values", Plain(), (Scale("times", self.sharing, 0.5),)),)

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        blocks = self.sharing.split(x)
        times = blocks.abs().amax((2, 4, 6), keepdim=True).clamp(1, 2**self.bits - 1).to(torch.uint8)
        return {"values": (blocks / (times * 0.5)).reshape(x.shape), "times": Sharing.entry(times)}


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from(list(WIDTHS)),
    group=st.sampled_from([1, 2, 5]),
    all_heads=st.booleans(),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
def test_codes_are_written_at_any_entry(bits: int, group: int, all_heads: bool, sizes: list[int]) -> None:
    """In calls of any size, across pages: as the codec made them, and bytes in closed form."""
    method = Stored(PlainCodes(bits, group, all_heads), Place("key", HEADS, DIM))
    pages = PageStore(method, REFERENCE, 1, CPU)
    x = torch.randn(1, HEADS, group * sum(sizes), DIM, generator=torch.Generator().manual_seed(bits)) * 40
    for part in x.split([group * size for size in sizes], 2):
        pages.append([0], part)
    made, layout = method.encode(x, Tokens(method.place, (0,))), pages.layout
    records = torch.stack([pages.pool.record(number) for number in pages.tables[0]])
    held = layout.read(records)
    for name, entries in made.items():
        assert torch.equal(held[name].transpose(0, 1).flatten(1, 2)[None, :, : entries.shape[2]], entries)
    count = layout.page_tokens // group * DIM // 8
    heads = 1 if all_heads else HEADS
    plain = heads * sum(-(-count * width // 8) for width in WIDTHS[bits])
    assert layout.record_bytes == 4 * HEADS * layout.page_tokens * DIM + -(-plain // 64) * 64
    start = layout.offsets["times"]
    by_hand = [byte for head in held["times"][0] for byte in packed_by_hand(head.flatten().tolist(), bits)]
    assert records[0, start : start + plain].tolist() == by_hand


@pytest.mark.parametrize("at", [0, 1, 3, 7])
def test_a_write_changes_no_neighbour(at: int) -> None:
    """Codes of three bits in a record of ones: those before and after stay."""
    layout = page_layout(Stored(PlainCodes(3, 1, False), Place("value", HEADS, DIM)))
    records = torch.full((2, layout.record_bytes), 255, dtype=torch.uint8)
    field = layout.fields[1]
    layout.write(records, field, at, torch.full((2, HEADS, 2, DIM // 8), 2, dtype=torch.uint8))
    expected = torch.full((2, *field.shape(layout.page_tokens)), 7, dtype=torch.uint8)
    expected[:, :, at : at + 2] = 2
    assert torch.equal(layout.read(records)["times"], expected)
    assert records[:, : layout.offsets["times"]].min() == 255
