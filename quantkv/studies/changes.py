"""One number in two rows, and what may be said of the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.instruments.statistics import SIGNIFICANT, paired_p_value

WORSE, BETTER, SAME = "worse", "better", "same"
UNCLEAR, UNJUDGED = "no difference shown", "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``change`` is b − a, or b / a where ``factor``; ``low`` and ``high`` are its 95 % interval.

    ``how`` says what the verdict rests on. A number without an interval is not judged, unless it is exact.
    """

    metric: str
    unit: str
    a: float | None
    b: float | None
    change: float | None
    low: float | None = None
    high: float | None = None
    factor: bool = False
    how: str
    verdict: str


def with_interval(
    metric: str,
    unit: str,
    values: tuple[Any, Any],
    interval: tuple[float | None, float | None],
    how: str,
    *,
    change: float | None = None,
    factor: bool = False,
    more_is_worse: bool = True,
    slack: float = 0.0,
) -> Change:
    """Judged by its interval: worse or better where that lies beyond no change by more than ``slack``.

    ``change`` is given where it is not the difference (or factor) of the two values as they stand. What is
    no finite number in b, and is one in a, is worse.
    """
    a, b = values
    if a is not None and b is None:
        gone = "no longer a finite number"
        return Change(metric=metric, unit=unit, a=a, b=None, change=None, how=gone, verdict=WORSE)
    moved = _change(a, b, factor) if change is None or not math.isfinite(change) else change
    low, high = interval
    verdict = _verdict(low, high, float(factor), slack, more_is_worse)
    facts: dict[str, Any] = {"low": low, "high": high, "factor": factor, "how": how}
    return Change(metric=metric, unit=unit, a=a, b=b, change=moved, verdict=verdict, **facts)


def exact(metric: str, unit: str, a: int, b: int) -> Change:
    """Numbers without any error, of which more is worse."""
    moved = WORSE if b > a else BETTER
    verdict = SAME if a == b else moved
    return Change(metric=metric, unit=unit, a=a, b=b, change=b - a, how="exact", verdict=verdict)


def tested(metric: str, unit: str, a: float, b: float, right: Sequence[Sequence[bool]]) -> Change:
    """A share of right answers, of which more is better, judged by an exact test of the same samples."""
    p_value = paired_p_value(right[1], right[0])
    if list(right[0]) == list(right[1]):
        verdict = SAME
    elif p_value >= SIGNIFICANT:
        verdict = UNCLEAR
    else:
        verdict = WORSE if b < a else BETTER
    how = f"paired exact test over {len(right[0])} samples, p = {p_value:.2g}"
    return Change(metric=metric, unit=unit, a=a, b=b, change=b - a, how=how, verdict=verdict)


def single(metric: str, unit: str, a: Any, b: Any, *, factor: bool = False) -> Change | None:
    """One measurement each: shown, never judged; None where either was not measured."""
    if a is None or b is None:
        return None
    facts: dict[str, Any] = {"change": _change(a, b, factor), "factor": factor}
    return Change(metric=metric, unit=unit, a=a, b=b, how="one measurement each", verdict=UNJUDGED, **facts)


def _change(a: float | None, b: float | None, factor: bool) -> float | None:
    if a is None or b is None or (factor and a == 0):
        return None
    return b / a if factor else b - a


def _verdict(low: float | None, high: float | None, neutral: float, slack: float, more_is_worse: bool) -> str:
    if low is None or high is None:
        return UNJUDGED
    if low == high == neutral:
        return SAME
    if low > neutral + slack:
        return WORSE if more_is_worse else BETTER
    if high < neutral - slack:
        return BETTER if more_is_worse else WORSE
    return UNCLEAR
