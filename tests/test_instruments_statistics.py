import math

import numpy as np
import pytest

from quantkv.instruments import statistics
from quantkv.instruments.statistics import median_interval, percentile_99, ratio, window_interval

SKEWED = [1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 7.0, 10.0]


def test_a_longer_window_weighs_more():
    assert ratio([10.0, 4.0], [10, 1]) == 14 / 11


@pytest.mark.parametrize("windows, has_interval", [(1, False), (7, False), (8, True), (15, True), (16, True)])
def test_no_interval_below_eight_windows(windows, has_interval):
    low, high = window_interval(np.arange(windows), np.ones(windows))
    assert (low is not None) is has_interval and (high is not None) is has_interval


def test_t_interval_by_hand():
    """Mean 4, standard deviation sqrt(64 / 7) over 8 windows of 10 tokens, t(0.975, 7) = 2.3646."""
    half = 2.36462425 * math.sqrt(64 / 7 / 8)
    sums = [10 * x for x in SKEWED]
    assert window_interval(sums, [10] * 8) == pytest.approx((4 - half, 4 + half), abs=1e-7)


def test_t_interval_of_unequal_windows_by_hand():
    """Ratio 10 / 10; residuals sum - n are +1, -1, 0..., and without them 9 and 8 of 10 tokens are left."""
    sums, counts = [2.0, 1.0, 1, 1, 1, 1, 1, 2], [1, 2, 1, 1, 1, 1, 1, 2]
    half = 2.36462425 * math.sqrt(7 / 8 * (1 / 9**2 + 1 / 8**2))
    assert window_interval(sums, counts) == pytest.approx((1 - half, 1 + half), abs=1e-7)


def test_from_sixteen_windows_on_the_interval_follows_the_skew():
    low, high = window_interval(SKEWED * 2, [1] * 16)
    assert low < 4 < high
    assert high - 4 > 1.2 * (4 - low), "a t-interval would be symmetric"


def test_fifteen_windows_give_a_symmetric_interval():
    values = SKEWED + SKEWED[:7]
    low, high = window_interval(values, [1] * 15)
    assert (low + high) / 2 == pytest.approx(np.mean(values))


def test_the_bootstrap_is_seeded():
    sums, counts = np.random.default_rng(5).gamma(1, 1, 20), np.ones(20)
    assert window_interval(sums, counts, seed=1) == window_interval(sums, counts, seed=1)
    assert window_interval(sums, counts, seed=1) != window_interval(sums, counts, seed=2)


REPETITIONS = 1000
SIZES = np.array([32, 64, 96, 128])
DESIGN_EFFECT = 7.0


def dependent_tokens(windows, *, skewed, seed):
    """Tokens `[1000, windows, 128]` of mean 0, NaN beyond a window's size. With correlation c inside windows
    the variance of their mean is 1 + c (Σn²/Σn - 1) times that of independent ones: seven times."""
    random = np.random.default_rng(seed)
    sizes = np.resize(SIZES, windows)
    correlation = (DESIGN_EFFECT - 1) / ((sizes**2).sum() / sizes.sum() - 1)
    shape = (REPETITIONS, windows, 1)
    level = random.gamma(4.0, 0.5, shape) - 2.0 if skewed else random.standard_normal(shape)
    own = random.standard_normal((REPETITIONS, windows, SIZES.max()))
    tokens = math.sqrt(correlation) * level + math.sqrt(1 - correlation) * own
    return np.where(np.arange(SIZES.max()) < sizes[:, None], tokens, np.nan), sizes


def share_covering_zero(intervals):
    low, high = np.array(intervals, float).T
    return np.mean((low <= 0) & (high >= 0))


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("windows", [10, 20])
def test_intervals_over_windows_cover_the_truth_and_intervals_over_tokens_do_not(
    windows, skewed, monkeypatch
):
    """From tokens the interval is sqrt(7) times too narrow: P(|z| < 1.96 / sqrt(7)) = 54 %."""
    monkeypatch.setattr(statistics, "RESAMPLES", 999)  # enough for coverage, and ten times as fast
    tokens, sizes = dependent_tokens(windows, skewed=skewed, seed=windows)
    found = [window_interval(sums, sizes) for sums in np.nansum(tokens, -1)]
    assert 0.92 <= share_covering_zero(found) <= 0.97

    flat = tokens.reshape(REPETITIONS, -1)
    half = 1.96 * np.nanstd(flat, -1, ddof=1) / math.sqrt(sizes.sum())
    mean = np.nanmean(flat, -1)
    assert 0.50 <= share_covering_zero(np.stack([mean - half, mean + half], -1)) <= 0.58


def test_equal_windows_have_an_interval_of_no_width():
    assert window_interval([2.0] * 16, [4] * 16) == (0.5, 0.5)


def test_infinite_sums_have_no_interval():
    assert window_interval([math.inf] + [1.0] * 15, [1] * 16) == (None, None)


@pytest.mark.parametrize("size, drop", [(6, 0), (9, 1), (10, 1), (12, 2), (20, 5)])
def test_median_interval_order_statistics(size, drop):
    """Binomial(n, 1/2): dropping k values at each end keeps 95 % as long as P(X <= k) <= 2.5 %."""
    values = list(np.random.default_rng(0).permutation(size).astype(float))
    assert median_interval(values) == (drop, size - 1 - drop)


def test_median_interval_needs_six_values():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (None, None)
    assert median_interval([]) == (None, None)


def test_p99_needs_five_thousand_tokens():
    assert percentile_99(np.arange(4999)) is None
    assert percentile_99(np.arange(5001)) == 4950.0
