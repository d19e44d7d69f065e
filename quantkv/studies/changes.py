"""One number in two rows, and what may be said of the difference: paired where both measured the very same
samples, else from the interval that each row has of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.instruments.statistics import (
    MIN_WINDOWS,
    SIGNIFICANT,
    Interval,
    paired_p_value,
    ratio,
    window_interval,
)

Row = Mapping[str, Any]
Section = Mapping[str, Any]
NATS = "nats/token"
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
    interval: Interval,
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


def paired(
    metric: str,
    unit: str,
    sections: tuple[Section, Section],
    sums: Sequence[float],
    counts: Sequence[float],
    what: str,
    **judged: Any,
) -> Change:
    """From the sums of b − a, sample by sample."""
    few = f", fewer than {MIN_WINDOWS}: no interval" if len(sums) < MIN_WINDOWS else ""
    values = (sections[0][metric], sections[1][metric])
    interval, how = window_interval(sums, counts), f"paired over {len(sums)} {what}{few}"
    return with_interval(metric, unit, values, interval, how, change=ratio(sums, counts), **judged)


def unpaired(metric: str, unit: str, sections: tuple[Section, Section], what: str, **judged: Any) -> Change:
    """From the interval that each row has of its own."""
    values = (sections[0].get(metric), sections[1].get(metric))
    interval = unpaired_difference(*(estimate(metric, section) for section in sections))
    how = f"unpaired, other {what}" + (": no interval" if interval[0] is None else "")
    return with_interval(metric, unit, values, interval, how, **judged)


def estimate(metric: str, section: Section, stem: str | None = None) -> Estimate:
    stem = stem or metric.removesuffix("_mean")
    return Estimate(number(section.get(metric)), section.get(f"{stem}_low"), section.get(f"{stem}_high"))


def moved(name: str, ours: Sequence[Section], theirs: Sequence[Section]) -> list[float]:
    return [number(y[name]) - number(x[name]) for x, y in zip(ours, theirs)]


def number(value: Any) -> float:
    """A null of a row is a number that was not finite."""
    return float("nan") if value is None else float(value)


def text_of(row: Row) -> tuple[Any, Any]:
    protocol = row.get("protocol") or {}
    return row["requested"].get("model"), protocol.get("text_sha256") or protocol.get("text")


def same_samples(a: Row, b: Row, name: str, ours: Sequence[Section], theirs: Sequence[Section]) -> bool:
    """Whether questions or prompts are the same ones: a text, a seed and a context make them."""
    asked = [[row["requested"].get(key) for key in ("seed", "context")] for row in (a, b)]
    same = asked[0] == asked[1] and text_of(a) == text_of(b) and bool(ours)
    return same and [sample[name] for sample in ours] == [sample[name] for sample in theirs]


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
