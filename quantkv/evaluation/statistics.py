"""Intervals over whole windows.

The tokens of a window depend on each other, so an interval made from tokens is far too narrow: the windows
are what gets resampled. All estimates are sums over sums, so a longer window weighs more.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_WINDOWS = 8
MIN_WINDOWS_BOOTSTRAP = 16
MIN_TOKENS_P99 = 5000
RESAMPLES = 10_000
TAIL = 0.025
T_QUANTILES = {8: 2.3646, 9: 2.3060, 10: 2.2622, 11: 2.2281, 12: 2.2010, 13: 2.1788, 14: 2.1604, 15: 2.1448}
"""0.975 quantile of Student's t for this many windows (one degree of freedom less)."""

Interval = tuple[float, float] | tuple[None, None]


def ratio(sums: ArrayLike, counts: ArrayLike) -> float:
    """Token-weighted mean of per-window sums."""
    return float(np.sum(sums) / np.sum(counts))


def window_interval(sums: ArrayLike, counts: ArrayLike, *, seed: int = 0) -> Interval:
    """95 % interval of `ratio(sums, counts)`; (None, None) where there are too few windows to make one."""
    s, n = np.asarray(sums, float), np.asarray(counts, float)
    if len(s) < MIN_WINDOWS or not np.isfinite(s).all():
        return None, None
    if len(s) < MIN_WINDOWS_BOOTSTRAP:
        return _t_interval(s, n)
    return _bootstrap_interval(s, n, seed)


def _t_interval(sums: NDArray, counts: NDArray) -> tuple[float, float]:
    estimate, error = _ratio_and_error(sums, counts)
    half = T_QUANTILES[len(sums)] * float(error)
    return float(estimate) - half, float(estimate) + half


def _ratio_and_error(sums: NDArray, counts: NDArray) -> tuple[NDArray, NDArray]:
    """Ratio estimate and its linearised standard error, along the last dimension."""
    windows = sums.shape[-1]
    estimate = sums.sum(-1) / counts.sum(-1)
    residuals = sums - estimate[..., None] * counts
    error = np.sqrt(windows / (windows - 1) * (residuals**2).sum(-1)) / counts.sum(-1)
    return estimate, error


def _bootstrap_interval(sums: NDArray, counts: NDArray, seed: int) -> tuple[float, float]:
    """Studentised bootstrap: with 16 skewed windows it covers about 94 %, percentiles and BCa about 89 %."""
    estimate, error = _ratio_and_error(sums, counts)
    picks = np.random.default_rng(seed).integers(0, len(sums), (RESAMPLES, len(sums)))
    estimates, errors = _ratio_and_error(sums[picks], counts[picks])
    usable = errors > 0
    if error == 0 or not usable.any():
        return float(estimate), float(estimate)
    low, high = np.quantile((estimates[usable] - estimate) / errors[usable], [TAIL, 1 - TAIL])
    return float(estimate - high * error), float(estimate - low * error)


def median_interval(values: Sequence[float]) -> Interval:
    """Distribution-free 95 % interval of the median from order statistics; (None, None) below 6 values."""
    ordered = sorted(values)
    drop, outside = 0, 0.5 ** len(ordered)
    while outside <= TAIL:
        drop += 1
        outside += math.comb(len(ordered), drop) * 0.5 ** len(ordered)
    return (ordered[drop - 1], ordered[-drop]) if drop else (None, None)


def percentile_99(values: ArrayLike) -> float | None:
    """The 99th percentile, which needs at least 5000 tokens to mean anything."""
    values = np.asarray(values, float)
    return float(np.quantile(values, 0.99)) if len(values) >= MIN_TOKENS_P99 else None
