"""Two rows of a kind, number by number: paired where both measured the very same samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantkv.instruments.statistics import MIN_WINDOWS, ratio, window_interval
from quantkv.studies.changes import Change, with_interval
from quantkv.studies.intervals import Estimate, unpaired_difference

Row = Mapping[str, Any]
Section = Mapping[str, Any]
NATS = "nats/token"


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
