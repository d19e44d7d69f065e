"""Tiles against the rule of their layout and against bytes written by hand."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_rule import head_by_rule

from quantkv.store import KEY_LANES, VALUE_LANES, Lanes
from quantkv.store.tiles import PLANES, head_bytes, join_planes, split_planes, tile, untile

DIMS = [1, 2, 8, 16, 24, 40, 64, 80, 96, 112, 128]
ROLES = st.sampled_from([KEY_LANES, VALUE_LANES])
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@settings(max_examples=120, deadline=None)
@given(
    bits=st.sampled_from([1, 2, 4, 8]),
    dim=st.sampled_from(DIMS),
    lanes=ROLES,
    tokens=st.sampled_from([64, 128, 192]),
    seed=st.integers(0, 2**16),
)
def test_codes_lie_as_the_rule_says(bits: int, dim: int, lanes: Lanes, tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(2**bits, (2, tokens, dim), generator=generator).to(torch.uint8)
    tiled = tile(codes, bits, lanes)
    assert tiled.tolist() == [head_by_rule(head, bits, lanes) for head in codes.numpy()]
    assert tiled.shape[-1] == head_bytes(bits, lanes, tokens, dim) and tiled.shape[-1] % 64 == 0
    assert torch.equal(untile(tiled, bits, lanes, tokens, dim), codes)


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(FLOATS), dim=st.sampled_from(DIMS), lanes=ROLES)
def test_floats_lie_as_the_rule_says(dtype: torch.dtype, dim: int, lanes: Lanes) -> None:
    x, bits = torch.randn(2, 128, dim).to(dtype), 8 * dtype.itemsize
    raw = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]).numpy()
    tiled = tile(x, bits, lanes)
    assert tiled.tolist() == [head_by_rule(head, bits, lanes) for head in raw]
    assert tiled.shape[-1] == head_bytes(bits, lanes, 128, dim) and tiled.shape[-1] % 64 == 0
    assert torch.equal(untile(tiled, bits, lanes, 128, dim, dtype), x)


def test_leading_dimensions_are_kept() -> None:
    codes = torch.randint(16, (3, 2, 128, 40), dtype=torch.uint8)
    for lanes in (KEY_LANES, VALUE_LANES):
        whole = tile(codes, 4, lanes)
        assert whole.shape == (3, 2, head_bytes(4, lanes, 128, 40))
        assert all(torch.equal(whole[n, h], tile(codes[n, h], 4, lanes)) for n in range(3) for h in range(2))
        assert torch.equal(untile(whole, 4, lanes, 128, 40), codes)


# --- bytes by hand ---
def words(tiled: torch.Tensor) -> list[int]:
    return list(struct.unpack(f"<{tiled.numel() // 4}I", bytes(tiled.flatten().tolist())))


def test_one_channel_of_keys_by_hand() -> None:
    """Token t holds t mod 16: lane t of all four vectors, which lie in the low half of one block."""
    codes = (torch.arange(64) % 16).to(torch.uint8).view(1, 64, 1)
    assert words(tile(codes, 4, "tokens")) == [0x1111 * lane for lane in range(16)]


def test_one_vector_of_values_by_hand() -> None:
    """Token t holds t mod 16 in all channels: eight tokens to a block, the first in the lowest bits."""
    codes = (torch.arange(64) % 16).to(torch.uint8).view(1, 64, 1).expand(1, 64, 16)
    assert words(tile(codes, 4, "channels")) == ([0x76543210] * 16 + [0xFEDCBA98] * 16) * 4


def test_channels_beyond_head_dim_are_zero_by_hand() -> None:
    """40 channels: panels of two vectors and of one, whose last eight lanes hold nothing."""
    ones = torch.full((1, 64, 40), 255, dtype=torch.uint8)
    assert tile(ones, 8, "channels").flatten().tolist() == [255] * 64 * 32 + ([255] * 8 + [0] * 8) * 64


# --- planes ---
def test_planes_add_up_to_their_width() -> None:
    assert sorted(PLANES) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(sum(planes) == bits for bits, planes in PLANES.items())


@pytest.mark.parametrize(
    ("bits", "code", "parts"),
    [
        (3, 0b101, [0b01, 0b1]),
        (5, 0b10110, [0b0110, 0b1]),
        (6, 0b110101, [0b0101, 0b11]),
        (7, 0b1010110, [0b0110, 0b01, 0b1]),
        (4, 11, [11]),
    ],
)
def test_planes_by_hand(bits: int, code: int, parts: list[int]) -> None:
    """The first plane holds the low bits; what does not fit the width is dropped."""
    for given_code in (code, code + 2**bits):
        split = split_planes(torch.tensor([given_code], dtype=torch.uint8), bits)
        assert [part.item() for part in split] == parts
    assert join_planes([torch.tensor([p], dtype=torch.uint8) for p in parts], bits).item() == code


@pytest.mark.parametrize("bits", sorted(PLANES))
def test_all_codes_survive_their_planes(bits: int) -> None:
    codes = torch.arange(2**bits).to(torch.uint8)
    assert torch.equal(join_planes(split_planes(codes, bits), bits), codes)
