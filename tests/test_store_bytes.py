"""Bytes of the store: live storages against sums written by hand, and the shape of pages."""

from __future__ import annotations

import pytest
import torch
from default_specs import DEFAULT_SPECS
from stores import DIM, HEADS, at_place, new_store

from quantkv import CacheSpec, TensorSpec, parse_spec, presets
from quantkv.codecs import Field
from quantkv.codecs.place import Which
from quantkv.store import PageLayout, page_layout
from quantkv.store.layout import allocated_pages


def bytes_by_hand(spec: CacheSpec, which: Which, rows: int, length: int) -> int:
    """Exact float32 tokens, and pages of formats with one code plane, one scale and one zero."""
    tensor: TensorSpec = getattr(spec, which)
    exact = rows * HEADS * DIM * 4 * (spec.sinks + tensor.recent + tensor.flush + spec.reserve)
    packed = max(0, length - spec.sinks - tensor.recent) // tensor.flush * tensor.flush
    bytes_per_token_head = DIM * (tensor.bits or 0) / 8
    tokens = 64
    while tokens * bytes_per_token_head < 4096 - 2 * 2 * tokens * (tensor.sharing == "token-head"):
        tokens *= 2
    entries = {"token-head": tokens, "channel": tokens // 32 * DIM, "token": tokens * DIM // 32}[
        tensor.sharing or ""
    ]
    record = HEADS * int(tokens * bytes_per_token_head) + 2 * (HEADS * entries * 2)
    return exact + rows * grown(-(-packed // tokens)) * record


def grown(pages: int) -> int:
    """One page at a time up to 16, then an eighth more at a time."""
    held = 0
    while held < pages:
        held += 1 if held < 16 else held // 8
    return held


LENGTHS = [1, 2, 5, 31, 64, 100, 101, 129, 132, 133, 200, 257, 300, 512, 600, 777, 1000, 1024, 2048, 4500]
BY_HAND = [
    "int8-head",
    "int4-head",
    "int8-channel",
    "int8-g32",
    "int4-g32",
    "kivi-4",
    "kivi-2",
    "int4-channel",
    "k8v4",
]


@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("name", BY_HAND)
def test_bytes_equal_the_sum_written_by_hand(name: str, which: Which) -> None:
    spec = presets()[name]
    store, total = new_store(spec, which, rows=2), 0
    for length in LENGTHS:
        store.append(torch.randn(2, HEADS, length - total, DIM))
        total = length
        assert store.nbytes == bytes_by_hand(spec, which, 2, length), length


def test_pages_grow_by_an_eighth() -> None:
    assert [allocated_pages(n) for n in (0, 1, 2, 8, 15, 16, 17, 18, 19)] == [0, 1, 2, 8, 15, 16, 18, 18, 20]
    assert all(allocated_pages(n) <= n * 9 / 8 + 1 for n in range(1, 2000))


def field_bytes(field: Field, layout: PageLayout, padded_dim: int) -> int:
    """Bytes up to the next field: elements without gaps but for lanes beyond head_dim, all else to 64."""
    tokens = layout.page_tokens
    if field.name in layout.planes:
        bits = field.bits or 8 * field.dtype.itemsize
        return HEADS * tokens * padded_dim * bits // 8
    return -(-field.heads * (tokens // field.tokens) * field.width * field.dtype.itemsize // 64) * 64


@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_pages_are_whole_groups_and_large_enough(text: str, which: Which) -> None:
    for tensor in (parse_spec(text).key, parse_spec(text).value):
        for dim in (32, 64, 96, 128):
            stored = at_place(tensor, which, dim=dim)
            layout = page_layout(stored)
            data = [field_bytes(f, layout, dim) for f in layout.fields if f.tokens == 1]
            assert layout.page_tokens % stored.group_tokens == 0 and layout.page_tokens % 64 == 0
            assert sum(data) / HEADS >= 4096


@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_fields_follow_each_other_at_multiples_of_64(text: str, which: Which) -> None:
    for dim in (32, 96, 160):
        layout, end = page_layout(at_place(parse_spec(text).key, which, dim=dim)), 0
        for field in layout.fields:
            start = layout.offsets.get(field.name, end)
            for plane in layout.planes.get(field.name, ()):
                assert plane.offset == start and plane.offset % 64 == plane.head_bytes % 64 == 0
                start += HEADS * plane.head_bytes
            assert field.name in layout.offsets or start == end + field_bytes(field, layout, dim)
            end += field_bytes(field, layout, dim)
        assert layout.record_bytes == end and end % 64 == 0


@pytest.mark.parametrize(
    ("text", "dim", "which", "bits"),
    [
        ("int4-head", 64, "key", 4.5),
        ("int4-head", 64, "value", 4.5),
        ("fp16", 64, "key", 16),
        ("fp16", 80, "value", 16),
        ("int3-head", 64, "value", 3.5),
        ("int4-head", 40, "key", 4 + 32 / 40),
        ("int4-head", 40, "value", (4 * 48 + 32) / 40),  # 40 channels take three vectors of 16
    ],
)
def test_bits_of_full_pages_by_hand(text: str, dim: int, which: Which, bits: float) -> None:
    layout = page_layout(at_place(parse_spec(text).key, which, dim=dim))
    assert layout.bits_per_element == pytest.approx(bits, abs=1e-12)


def test_used_bytes_count_what_holds_tokens() -> None:
    """int8-head, 32 channels: 36 bytes per token and head; 2 heads, 64 packed tokens."""
    store = new_store(parse_spec("int8-head+r0+f32+s0+k0"))
    store.append(torch.randn(1, HEADS, 70, DIM))
    assert store.pages.used_nbytes == 64 * HEADS * 36
    assert store.pages.used_nbytes < store.pages.nbytes
