"""Statistics of keys and values, on tensors whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkv.measurements.inside.channels import (
    BINS,
    channel_statistics,
    head_statistics,
    magnitude_map,
)


def heads(x: torch.Tensor):
    return head_statistics(x, channel_statistics(x))


def test_a_channel_fifty_times_the_rest_has_ratio_fifty():
    x = torch.ones(2, 40, 8)
    x[0, :, 5] = -50
    x[1, ::2] *= -1
    found = heads(x)
    assert found.outlier_ratio.tolist() == [50, 1]
    assert found.hot_channel[0] == 5
    assert found.absmax.tolist() == [50, 1]


def test_channel_means_and_magnitudes_by_hand():
    found = channel_statistics(torch.tensor([[[3.0, 0.0], [-1.0, 2.0]]]))
    assert found.mean.tolist() == [[1, 1]]
    assert np.allclose(found.rms, [[5**0.5, 2**0.5]])
    assert found.absmax.tolist() == [[3, 2]]


@pytest.mark.parametrize(
    "column, offset",
    [
        ([4.0, 4.0, 4.0, 4.0], 1.0),  # a constant
        ([4.0, -4.0, 4.0, -4.0], 0.0),  # no mean
        ([7.0, 1.0, 7.0, 1.0], 16 / 25),  # mean 4, mean square 25
    ],
)
def test_the_constant_part_of_the_hottest_channel(column, offset):
    x = torch.full((1, 4, 3), 0.5)
    x[0, :, 1] = torch.tensor(column)
    assert heads(x).hot_offset == pytest.approx(offset)


def test_kurtosis_of_known_distributions():
    """Excess kurtosis: Gaussian 0, uniform −6/5, two equal points −2, Laplace 3."""
    generator = np.random.default_rng(0)
    draws = [
        generator.normal(size=400_000),
        generator.uniform(size=400_000),
        generator.integers(0, 2, 400_000).astype(float),
        generator.laplace(size=400_000),
    ]
    x = torch.tensor(np.stack(draws)).view(4, 4000, 100)
    assert np.allclose(heads(x).kurtosis, [0, -1.2, -2, 3], atol=0.12)


def test_an_all_zero_head_has_no_ratio_and_warns_of_nothing():
    found = heads(torch.zeros(1, 4, 4))
    assert np.isnan(found.outlier_ratio[0]) and found.absmax[0] == 0


@settings(deadline=None)  # the first example imports scipy
@given(st.floats(0.01, 100), st.integers(0, 2**16))
def test_ratio_offset_and_kurtosis_have_no_unit(factor, seed):
    x = torch.randn(2, 20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    one, other = heads(x), heads(x * factor)
    for name in ("outlier_ratio", "hot_offset", "kurtosis"):
        assert np.allclose(getattr(one, name), getattr(other, name), rtol=1e-9)
    assert (one.hot_channel == other.hot_channel).all()


def test_a_map_puts_heads_side_by_side_and_keeps_every_peak():
    x = torch.zeros(2, 3 * BINS, 4)
    x[1, 7, 2] = -9
    found = magnitude_map(x)
    assert found.shape == (BINS, 8)
    assert found[2, 6] == 9 and found.sum() == 9  # token 7 lies in the third row of three tokens each


def test_a_short_text_keeps_a_row_per_token():
    x = torch.arange(12.0).view(1, 3, 4)
    assert magnitude_map(x).tolist() == x[0].tolist()
