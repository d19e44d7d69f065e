"""Shares of right answers: their intervals, a paired exact test, and when they say nothing at all."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest

SIGNIFICANT = 0.05


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    interval = binomtest(hits, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)


def paired_p_value(right: Sequence[bool], right_ref: Sequence[bool]) -> float:
    """Two-sided exact test (McNemar 1947) that two arms answer the same samples equally well.

    Only samples that one arm alone got right say anything: under equality either arm is that one with
    probability 1/2.
    """
    gained = sum(a and not b for a, b in zip(right, right_ref, strict=True))
    lost = sum(b and not a for a, b in zip(right, right_ref, strict=True))
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def beats_chance(hits: int, trials: int, chance: float) -> bool:
    """Whether so many right answers are unlikely (one-sided, 5 %) for somebody who guesses."""
    return float(binomtest(hits, trials, chance, alternative="greater").pvalue) < SIGNIFICANT
