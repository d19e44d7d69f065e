"""Memory is given back: whatever takes tokens or rows away leaves about the bytes of a
cache that never had them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from runs import live_bytes
from torch import Tensor

from quantkv import QuantizedCache
from quantkv.models import random_model

SPECS = (
    "int4-head",
    "int2-channel",
    "fp16",
    "exact",
    "kivi-2",
    "k.int8-channel@g16+r16+f16+v.int4-head+r4+f3+s2+k8",
    "int4-head+q500",
)
SLACK = 1.25


@pytest.fixture(autouse=True)
def _unsaid() -> Iterator[None]:
    """Deep roll-backs are meant here."""
    with warnings.catch_warnings(action="ignore"):
        yield


@cache
def config() -> Any:
    return random_model("random-llama", num_hidden_layers=1).config


@cache
def tokens(rows: int) -> Tensor:
    return torch.randn(rows, 2, 2200, 32, generator=torch.Generator().manual_seed(rows))


def filled(spec: str, *calls: int, rows: int = 1, x: Tensor | None = None) -> QuantizedCache:
    cache = QuantizedCache(config(), spec)
    go_on(cache, *calls, x=tokens(rows) if x is None else x)
    return cache


def go_on(cache: QuantizedCache, *calls: int, x: Tensor) -> None:
    for call in calls:
        start = cache.get_seq_length()
        cache.update(x[:, :, start : start + call], x[:, :, start : start + call], 0)


def contents(cache: QuantizedCache) -> list[Tensor]:
    (layer,) = cache.quantized_layers
    return [store.view().read(0, store.length) for store in layer.stores]


def same(first: QuantizedCache, second: QuantizedCache) -> bool:
    return all(torch.equal(a, b) for a, b in zip(contents(first), contents(second), strict=True))


def check_small(cache: QuantizedCache, fresh: QuantizedCache) -> None:
    for one in (cache, copy.deepcopy(cache)):
        assert one.nbytes == live_bytes(one) <= SLACK * fresh.nbytes


# --- tokens that are taken back ---
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("calls", [(2000,), (*[40] * 50,)], ids=["at once", "in pieces"])
@pytest.mark.parametrize("kept", [1, 300, 1100, 1999])
def test_crop_gives_memory_back(spec: str, calls: tuple[int, ...], kept: int) -> None:
    cropped = filled(spec, *calls)
    cropped.crop(kept - 2000)
    check_small(cropped, filled(spec, kept))


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_left_reads_and_goes_on_as_before(spec: str) -> None:
    cropped, expected = filled(spec, 2000), filled(spec, 300)
    cropped.crop(-1700)
    (layer,) = expected.quantized_layers
    packed = [store.packed(0) for store in layer.stores]
    for stop, mine, theirs in zip(packed, contents(cropped), contents(expected), strict=True):
        assert torch.equal(mine[:, :, :stop], theirs[:, :, :stop])
    go_on(cropped, 1000, 1, 1, 700, x=tokens(1))
    assert cropped.nbytes == live_bytes(cropped) == cropped.predicted_nbytes()


def test_attention_reads_the_pages_where_they_lie_now() -> None:
    from quantkv.engines import attend

    cropped, query = filled("int4-head+q1", 2000), torch.randn(1, 4, 1, 32)
    for length in (300, 150):
        keys, values = cropped.update(tokens(1)[:, :, :1], tokens(1)[:, :, :1], 0)
        got = attend(query, keys.kv, values.kv)  # type: ignore[attr-defined]
        k, v = (x.materialize().repeat_interleave(2, 1) for x in (keys, values))  # type: ignore[attr-defined]
        expected = torch.nn.functional.scaled_dot_product_attention(query, k, v)
        assert torch.allclose(got, expected, atol=1e-5)
        cropped.crop(length - cropped.get_seq_length())


# --- rows that are dropped ---
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kept", [[5], [1, 6], [7, 0, 3, 3]])
def test_rows_that_go_take_their_memory_along(spec: str, kept: list[int]) -> None:
    cache = filled(spec, 900, rows=8)
    cache.batch_select_indices(torch.tensor(kept))
    fresh = filled(spec, 900, x=tokens(8)[kept])
    assert same(cache, fresh)
    check_small(cache, fresh)
    go_on(cache, 500, 1, x=tokens(8)[kept])
    go_on(fresh, 500, 1, x=tokens(8)[kept])
    assert same(cache, fresh)


# --- forks ---
def test_pages_of_forks_stay_and_move_along() -> None:
    cache, expected = filled("int4-head", 2000), filled("int4-head", 2000)
    fork, held = cache.fork(), cache.nbytes
    cache.crop(-1700)
    assert cache.nbytes == held  # all pages are the fork's
    assert same(fork, expected)
    fork.crop(-1000)
    expected.crop(-1000)
    assert same(fork, expected)
    assert fork.nbytes <= SLACK * filled("int4-head", 1000).nbytes
    check_small(cache.fork(), filled("int4-head", 1000))
    x = tokens(1)
    for one in (cache, fork, expected):
        go_on(one, 400, 1, x=x[:, :, : one.get_seq_length() + 401])
    assert same(fork, expected)


@pytest.mark.parametrize("end", [lambda fork: fork.reset(), lambda fork: fork.crop(-2100)])
def test_memory_of_a_fork_that_went_far_comes_back(end: Callable[[QuantizedCache], None]) -> None:
    cache = filled("int4-head", 300)
    fork = cache.fork()
    go_on(fork, 1800, x=tokens(1))
    end(fork)
    del fork
    go_on(cache, 1, x=tokens(1))
    check_small(cache, filled("int4-head", 301))
    assert same(cache, filled("int4-head", 300, 1))


def test_a_copy_leaves_the_pages_of_forks_behind() -> None:
    cache = filled("int4-head", 300)
    fork = cache.fork()
    go_on(fork, 1800, x=tokens(1))
    twin = copy.deepcopy(cache)
    assert same(twin, cache)
    assert twin.nbytes == live_bytes(twin) <= SLACK * filled("int4-head", 300).nbytes


# --- layers with a sliding window, and emptied ones ---
def test_sliding_layers_give_memory_back_too() -> None:
    gemma = random_model("random-gemma3", sliding_window=2048).config
    calls, caches = (2000, 300), []
    for call in calls:
        cache = QuantizedCache(gemma, "int4-head+sliding")
        for layer in range(len(cache.layers)):
            x = torch.randn(1, 2, call, 32, generator=torch.Generator().manual_seed(layer))
            cache.update(x, x, layer)
        caches.append(cache)
    caches[0].crop(-1700)
    check_small(*caches)


def test_reset_holds_nothing() -> None:
    cache = filled("int4-head", 2000, rows=8)
    cache.reset()
    assert cache.nbytes == live_bytes(cache) == 0


def test_small_roll_backs_move_no_memory() -> None:
    """Assisted decoding takes tokens back at every step."""
    cache = filled("int4-head", 2000)
    slabs = [slab.data_ptr() for store in cache.quantized_layers[0].stores for slab in store.pages.pool.slabs]
    for _ in range(20):
        cache.crop(-7)
        go_on(cache, 9, x=tokens(1))
    after = [slab.data_ptr() for store in cache.quantized_layers[0].stores for slab in store.pages.pool.slabs]
    assert after[: len(slabs)] == slabs
