"""Bytes of the store: live storages against sums written by hand, and the shape of pages."""

from __future__ import annotations

import pytest
import torch
from default_specs import DEFAULT_SPECS
from stores import DIM, HEADS, new_store

from quantkv import CacheSpec, TensorSpec, parse_spec, presets
from quantkv.store import page_layout
from quantkv.store.layout import allocated_pages


def bytes_by_hand(spec: CacheSpec, which: str, rows: int, length: int) -> int:
    """Exact float32 tokens, and pages of formats with one code plane, one scale and one zero."""
    tensor: TensorSpec = getattr(spec, which)
    exact = rows * HEADS * DIM * 4 * (spec.sinks + tensor.recent + tensor.flush + spec.reserve)
    packed = max(0, length - spec.sinks - tensor.recent) // tensor.flush * tensor.flush
    bytes_per_token_head = DIM * (tensor.bits or 0) / 8
    tokens = 32
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
def test_bytes_equal_the_sum_written_by_hand(name: str, which: str) -> None:
    spec = presets()[name]
    store, total = new_store(spec, which, rows=2), 0
    for length in LENGTHS:
        store.append(torch.randn(2, HEADS, length - total, DIM))
        total = length
        assert store.nbytes == bytes_by_hand(spec, which, 2, length), length


def test_pages_grow_by_an_eighth() -> None:
    assert [allocated_pages(n) for n in (0, 1, 2, 8, 15, 16, 17, 18, 19)] == [0, 1, 2, 8, 15, 16, 18, 18, 20]
    assert all(allocated_pages(n) <= n * 9 / 8 + 1 for n in range(1, 2000))


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_pages_are_whole_groups_and_large_enough(text: str) -> None:
    for tensor in (parse_spec(text).key, parse_spec(text).value):
        codec = tensor.build()
        for dim in (32, 64, 96, 128):
            layout = page_layout(codec, HEADS, dim, torch.float32)
            fields = [f for f in layout.fields if f.tokens == 1]
            data = sum(f.nbytes(layout.page_tokens) for f in fields) / HEADS
            assert layout.page_tokens % codec.group_tokens == 0 and data >= 4096
            ends = [
                at + f.nbytes(layout.page_tokens) for at, f in zip(layout.offsets, layout.fields, strict=True)
            ]
            starts = [*layout.offsets[1:], layout.record_bytes]
            assert all(
                end <= start and at % 64 == 0
                for end, start, at in zip(ends, starts, layout.offsets, strict=True)
            )


def test_used_bytes_count_what_holds_tokens() -> None:
    """int8-head, 32 channels: 36 bytes per token and head; 2 heads, 64 packed tokens."""
    store = new_store(parse_spec("int8-head+r0+f32+s0+k0"))
    store.append(torch.randn(1, HEADS, 70, DIM))
    assert store.pages.used_nbytes == 64 * HEADS * 36
    assert store.pages.used_nbytes < store.pages.nbytes
