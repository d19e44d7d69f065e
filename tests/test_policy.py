"""`boundary(n)` in closed form against the flush rules carried out step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkv.policy import Window


def kivi_keys(prompt: int, steps: int, residual: int = 128) -> list[int]:
    """KIVI's keys: packed tokens before each query after a prefill; a full tail is packed at once."""
    packed, tail, seen = prompt - prompt % residual, prompt % residual, []
    for _ in range(steps):
        seen.append(packed)
        tail += 1
        if tail == residual:
            packed, tail = packed + residual, 0
    return seen


def kivi_values(prompt: int, steps: int, residual: int = 128) -> list[int]:
    """KIVI's values: the oldest token is packed as soon as more than `residual` are exact."""
    packed, seen = max(0, prompt - residual), []
    tail = prompt - packed
    for _ in range(steps):
        seen.append(packed)
        tail += 1
        if tail > residual:
            packed, tail = packed + 1, tail - 1
    return seen


def simulated_boundary(n: int, sinks: int, recent: int, flush: int, after: int = 0) -> int:
    """Tokens come one by one; once the window and a whole chunk lie after the packed ones, it leaves."""
    packed = 0
    for cached in range(1, n + 1):
        while cached > after and cached - sinks - packed >= recent + flush:
            packed += flush
    return sinks + packed


@pytest.mark.parametrize("prompt", [0, 1, 127, 128, 129, 300, 512])
def test_rules_of_kivi(prompt: int) -> None:
    keys, values = Window(0, 0, 128, 32), Window(0, 128, 1, 32)
    lengths = range(prompt, prompt + 300)
    assert [keys.packed(n) for n in lengths] == kivi_keys(prompt, 300)
    assert [values.packed(n) for n in lengths] == kivi_values(prompt, 300)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(0, 300),
    sinks=st.integers(0, 9),
    recent=st.integers(0, 70),
    flush=st.integers(1, 70),
    after=st.one_of(st.just(0), st.integers(0, 300)),
)
def test_closed_form_equals_simulation(n: int, sinks: int, recent: int, flush: int, after: int) -> None:
    window = Window(sinks, recent, flush, 0, after)
    assert window.boundary(n) == simulated_boundary(n, sinks, recent, flush, after)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(0, 500),
    sinks=st.integers(0, 9),
    recent=st.integers(0, 70),
    flush=st.integers(1, 70),
    reserve=st.integers(0, 40),
)
def test_what_stays_exact(n: int, sinks: int, recent: int, flush: int, reserve: int) -> None:
    window = Window(sinks, recent, flush, reserve)
    boundary = window.boundary(n)
    exact = n - boundary
    assert (
        boundary == sinks or recent <= exact < recent + flush
    )  # at least the window, less than one chunk more
    assert (boundary - sinks) % flush == 0
    assert window.boundary(n + 1) >= boundary
    assert n - window.boundary(n - reserve) <= window.capacity  # what a roll-back needs fits what is held
    assert window.capacity == recent + flush + reserve


def test_by_hand() -> None:
    window = Window(sinks=4, recent=64, flush=32, reserve=32)
    assert [window.boundary(n) for n in (0, 4, 99, 100, 131, 132)] == [4, 4, 4, 36, 36, 68]
    assert [window.packed(n) for n in (0, 99, 100, 132)] == [0, 0, 32, 64]


def test_tensors_of_lengths() -> None:
    window = Window(3, 5, 7, 0)
    lengths = torch.arange(-5, 60)
    assert window.boundary(lengths).tolist() == [window.boundary(int(n)) for n in lengths]
