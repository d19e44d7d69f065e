"""Directed rounding against a list of every number of a dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantkv.codecs.rounding import round_down, round_up, round_up_positive


# --- every finite number of each 16-bit dtype, sorted, is the ground truth ---
def all_numbers(dtype: torch.dtype) -> np.ndarray:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(dtype).to(torch.float64)
    return np.unique(numbers[numbers.isfinite()].numpy())


NUMBERS = {dtype: all_numbers(dtype) for dtype in (torch.float16, torch.bfloat16)}
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, 1e-8, -1e-8, 6e4, -6e4, 65504.0, 1.0, -1.0, 2.0**-24, 1 / 3, -1 / 3]


def expected(x: Tensor, dtype: torch.dtype, up: bool) -> np.ndarray:
    numbers, values = NUMBERS[dtype], x.to(torch.float64).numpy()
    index = np.searchsorted(numbers, values, side="left" if up else "right") - (0 if up else 1)
    return numbers[np.clip(index, 0, len(numbers) - 1)]


def floats() -> st.SearchStrategy[float]:
    wide = st.floats(min_value=-7e4, max_value=7e4, width=32)
    return st.one_of(wide, st.floats(-(2.0**-14), 2.0**-14, width=32), st.sampled_from(SPECIAL))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@settings(max_examples=150, deadline=None)
@given(values=st.lists(floats(), min_size=1, max_size=20))
def test_rounding_directions(dtype: torch.dtype, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    if dtype == torch.bfloat16:
        x = torch.where(
            x.abs() < 1e-37, torch.zeros_like(x), x
        )  # processors may flush what is smaller to zero
    for rounded, up in ((round_down(x, dtype), False), (round_up(x, dtype), True)):
        assert rounded.dtype == dtype
        assert np.array_equal(rounded.to(torch.float64).numpy(), expected(x, dtype, up))


@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.floats(min_value=-1e30, max_value=1e30), min_size=1, max_size=20))
def test_rounding_directions_to_float32(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    x = torch.where(x.abs() < 1e-37, torch.zeros_like(x), x)
    nearest = x.numpy().astype(np.float32)
    below = np.where(nearest > x.numpy(), np.nextafter(nearest, np.float32(-np.inf)), nearest)
    above = np.where(nearest < x.numpy(), np.nextafter(nearest, np.float32(np.inf)), nearest)
    assert np.array_equal(round_down(x, torch.float32).numpy(), below)
    assert np.array_equal(round_up(x, torch.float32).numpy(), above)


def test_numbers_beyond_the_dtype_stay_finite() -> None:
    x = torch.tensor([-1e9, -65505.0, 65505.0, 1e9])
    largest = 65504.0
    for rounded in (round_down(x, torch.float16), round_up(x, torch.float16)):
        assert rounded.tolist() == [-largest, -largest, largest, largest]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scales_are_never_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1e-38, 1e-30, 3e-9, 0.1])
    scale = round_up_positive(x, dtype).to(torch.float32)
    assert (scale > 0).all() and (scale >= x).all()
    assert scale[-1] <= 0.1 * (1 + 2.0**-7)
