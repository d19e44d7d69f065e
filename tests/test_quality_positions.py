"""Quality along the scored span, from per-token scores with known answers."""

import math

import pytest
import torch

from quantkv.instruments.divergence import TokenScores
from quantkv.measurements.quality.section import by_position


def scores(kl: list[float], gap: float = 0.5) -> TokenScores:
    kls = torch.tensor(kl, dtype=torch.float64)
    ones = torch.ones_like(kls)
    return TokenScores(ones + gap, ones, kls, ones.bool(), ones)


def means(parts: list[dict]) -> list[tuple[int, int, int, float]]:
    return [(part["start"], part["stop"], part["n"], part["kl_mean"]) for part in parts]


def test_sixteen_tokens_are_eight_runs_of_two():
    parts = by_position([scores([float(i) for i in range(16)])])
    assert means(parts) == [(2 * i, 2 * i + 2, 2, 2 * i + 0.5) for i in range(8)]
    assert all(part["delta_nll"] == 0.5 for part in parts)
    assert all(part["kl_low"] is None and part["delta_nll_high"] is None for part in parts)


def test_ten_tokens_are_uneven_runs_that_leave_none_out():
    parts = by_position([scores([1.0] * 10)])
    assert [(p["start"], p["stop"]) for p in parts] == [
        (0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7), (7, 8), (8, 10)
    ]  # fmt: skip
    assert sum(part["n"] for part in parts) == 10


def test_a_short_window_counts_in_the_runs_it_reaches():
    """Four runs of one token would be eight; windows of 3 and 1 tokens give three runs."""
    parts = by_position([scores([1.0, 2.0, 3.0]), scores([5.0])])
    assert means(parts) == [(0, 1, 2, 3.0), (1, 2, 1, 2.0), (2, 3, 1, 3.0)]


def test_unequal_windows_weigh_by_their_tokens_within_a_run():
    """Runs of two: in the first, 1 + 1 + 4 over three tokens."""
    parts = by_position([scores([1.0, 1.0, *[0.0] * 14]), scores([4.0])])
    assert means(parts)[0] == (0, 2, 3, 2.0)


def test_intervals_come_from_whole_windows():
    parts = by_position([scores([float(i)] * 8) for i in range(8)])
    half = 2.36462425 * math.sqrt(6 / 8)  # eight windows 0..7: variance 6, t(0.975, 7)
    assert (parts[0]["kl_low"], parts[0]["kl_high"]) == pytest.approx((3.5 - half, 3.5 + half), abs=1e-6)
    assert parts[0]["delta_nll_low"] == pytest.approx(0.5) == parts[0]["delta_nll_high"]
