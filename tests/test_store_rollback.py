"""Going back in the store, and views of states that are gone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from default_specs import A_FEW
from stores import DIM, HEADS, everything, feed, new_store

from quantkv import QuantKVError, parse_spec


@pytest.mark.parametrize("text", [*A_FEW, "exact"])
def test_going_back_within_the_reserve_is_as_if_never_gone_forward(text: str) -> None:
    spec = parse_spec(text)
    x, other = torch.randn(1, HEADS, 110, DIM), torch.randn(1, HEADS, 60, DIM)
    for n in range(40, 60):
        for back in range(1, spec.reserve + 1):
            store, never = new_store(spec), new_store(spec)
            feed(store, x[:, :, : n + back], [n, *[1] * back])
            assert store.truncate(n) == 0
            never.append(x[:, :, :n])
            assert torch.equal(everything(store), everything(never))
            if back in (1, spec.reserve):
                for s in (store, never):
                    feed(s, other, [1, 20, *[1] * 39])
                assert torch.equal(everything(store), everything(never))


def test_deep_roll_back_keeps_whole_chunks_and_decodes_the_cut_one() -> None:
    spec = parse_spec("int4-head+r8+f16+s2+k4")
    x, store = torch.randn(1, HEADS, 100, DIM), new_store(spec)
    store.append(x)
    packed = everything(store)[:, :, 2:82]  # b(100) = 2 + 16 · floor(90 / 16) = 82
    assert store.pages.used == [80]
    assert store.truncate(50) == 1  # b(50) = 2 + 16 · floor(40 / 16) = 34
    assert store.pages.used == [32]
    now = everything(store)
    assert torch.equal(now[:, :, 2:34], packed[:, :, :32])
    assert torch.equal(now[:, :, 34:50], packed[:, :, 32:48])
    assert torch.equal(now[:, :, :2], x[:, :, :2])


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_going_back_into_the_sinks_forgets_the_deep_past(length: int) -> None:
    """What comes after such a roll-back is exact again, and a small step back from there is no deep one."""
    spec = parse_spec("int4-head+r8+f16+s2+k8")
    store, fresh, x = new_store(spec), new_store(spec), torch.randn(1, HEADS, 120, DIM)
    store.append(torch.randn(1, HEADS, 150, DIM))
    store.truncate(length)
    kept = everything(store)
    feed(store, x, [60, *[1] * 60])
    feed(fresh, torch.cat([kept, x], 2), [length + 60, *[1] * 60] if length + 60 else [])
    assert store.truncate(length + 116) == 0 and fresh.truncate(length + 116) == 0
    assert torch.equal(everything(store), everything(fresh))


def test_longer_reserve_from_now_on() -> None:
    spec = parse_spec("int4-head+r8+f16+s2+k0")
    x, store, never = torch.randn(1, HEADS, 150, DIM), new_store(spec), new_store(spec)
    feed(store, x[:, :, :50], [50])
    store.set_reserve(40)
    feed(store, x[:, :, 50:140], [1] * 90)
    assert store.truncate(100) == 0
    never.append(x[:, :, :100])
    assert torch.equal(everything(store), everything(never))


# --- views ---
def test_view_shows_the_state_before_packing_until_the_next_change() -> None:
    spec, x = parse_spec("int4-head+r0+f4+s0+k4"), torch.randn(1, HEADS, 9, DIM)
    store = new_store(spec)
    feed(store, x[:, :, :3], [3])
    view = store.append(x[:, :, 3:4])  # the fourth token fills a chunk
    assert torch.equal(view.read(0, 4), x[:, :, :4])
    assert not torch.equal(view.after_packing().read(0, 4), x[:, :, :4])
    store.append(x[:, :, 4:5])
    for change in (lambda: None, lambda: store.truncate(4), lambda: store.select([0])):
        change()
        with pytest.raises(QuantKVError, match="earlier state"):
            view.read(0, 4)


@pytest.mark.parametrize("sizes", [[200], [90, *[1] * 110], [64, 64, 72]])
def test_pieces_of_a_view_join_to_the_whole(sizes: list[int]) -> None:
    store = new_store(parse_spec("int3-channel@g16+r8+f16+s2+k8"), rows=2, pads=[3, 0])
    feed(store, torch.randn(2, HEADS, 200, DIM), sizes)
    view = store.view()
    edges = view.edges()
    assert edges[0] == 0 and edges[-1] == 200 and edges == sorted(set(edges))
    whole = torch.cat([view.read(a, b) for a, b in pairwise(edges)], 2)
    assert torch.equal(whole, view.read(0, 200))
    for start, stop in [(0, 1), (2, 7), (3, 90), (150, 200), (199, 200)]:
        assert torch.equal(view.read(start, stop), whole[:, :, start:stop])
