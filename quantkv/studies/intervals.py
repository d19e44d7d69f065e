"""Intervals of a change between two rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantkv.instruments.statistics import Interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; None where there is none."""

    value: float
    low: float | None
    high: float | None


def unpaired_difference(a: Estimate, b: Estimate) -> Interval:
    """95 % interval of b − a from the intervals of independent estimates (Zou & Donner 2008, "MOVER"): each
    side adds the distances of the two limits that move it, in squares. Of Wilson intervals it makes
    Newcombe's interval of a difference of shares. (None, None) where an estimate has no interval."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None, None
    change = b.value - a.value
    low = change - math.hypot(b.value - b.low, a.high - a.value)
    high = change + math.hypot(b.high - b.value, a.value - a.low)
    return low, high


def unpaired_factor(a: Estimate, b: Estimate) -> Interval:
    """The same for b / a, on a logarithmic scale; all values are positive."""
    low, high = unpaired_difference(_log(a), _log(b))
    return (None, None) if low is None or high is None else (math.exp(low), math.exp(high))


def _log(x: Estimate) -> Estimate:
    if x.low is None or x.high is None or min(x.value, x.low) <= 0:
        return Estimate(math.nan, None, None)
    return Estimate(math.log(x.value), math.log(x.low), math.log(x.high))
