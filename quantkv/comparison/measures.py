"""The numbers that are compared in two rows of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantkv.comparison.changes import SAME, Change, exact, single, tested, with_interval
from quantkv.comparison.intervals import Estimate, unpaired_difference, unpaired_factor
from quantkv.comparison.matching import Row
from quantkv.instruments.statistics import MIN_WINDOWS, ratio, window_interval

Section = Mapping[str, Any]
BASELINE = "dynamic"
NATS = "nats/token"


def changes(a: Row, b: Row) -> list[Change]:
    """The changes from one row to another of the same kind; both have a section of it."""
    kind = a["kind"]
    found = [change for change in _BY_KIND[kind](a, b, a[kind], b[kind]) if change is not None]
    if a[kind] == b[kind]:  # the same measurement, or one that repeats to the last digit
        return [replace(change, verdict=SAME) for change in found]
    return found


def _quality(a: Row, b: Row, qa: Section, qb: Section) -> Iterator[Change | None]:
    ours, theirs = qa.get("windows") or [], qb.get("windows") or []
    floor = max(section.get("floor_path_kl") or 0.0 for section in (qa, qb))
    if _same_windows(a, b, ours, theirs):
        n = [w["n"] for w in ours]
        gaps = [_gap(y) - _gap(x) for x, y in zip(ours, theirs)]
        yield _paired("delta_nll", NATS, (qa, qb), gaps, n, "windows")
        yield _paired("kl_mean", NATS, (qa, qb), _moved("sum_kl", ours, theirs), n, "windows", slack=floor)
    else:
        yield _unpaired("delta_nll", NATS, (qa, qb), "windows")
        yield _unpaired("kl_mean", NATS, (qa, qb), "windows", slack=floor)
    if qa.get("nll_ref") != qb.get("nll_ref"):
        yield single("nll_ref", NATS, qa.get("nll_ref"), qb.get("nll_ref"))
    if qa.get("cache_bytes") and qb.get("cache_bytes"):
        yield exact("cache_bytes", "bytes", qa["cache_bytes"], qb["cache_bytes"])


def _same_windows(a: Row, b: Row, ours: Sequence[Section], theirs: Sequence[Section]) -> bool:
    """Whether both scored the same places of the same text in the same tokens."""
    places = [[(w.get("start"), w["n"]) for w in windows] for windows in (ours, theirs)]
    known = bool(places[0]) and all(start is not None for start, _ in places[0])
    return known and _text(a) == _text(b) and places[0] == places[1]


def _text(row: Row) -> tuple[Any, Any]:
    protocol = row.get("protocol") or {}
    return row["requested"].get("model"), protocol.get("text_sha256") or protocol.get("text")


def _gap(window: Section) -> float:
    return _number(window["sum_nll"]) - _number(window["sum_nll_ref"])


def _moved(name: str, ours: Sequence[Section], theirs: Sequence[Section]) -> list[float]:
    return [_number(y[name]) - _number(x[name]) for x, y in zip(ours, theirs)]


def _number(value: Any) -> float:
    """A null of a row is a number that was not finite."""
    return float("nan") if value is None else float(value)


def _paired(
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


def _unpaired(metric: str, unit: str, sections: tuple[Section, Section], what: str, **judged: Any) -> Change:
    """From the interval that each row has of its own."""
    values = (sections[0].get(metric), sections[1].get(metric))
    interval = unpaired_difference(*(_estimate(metric, section) for section in sections))
    how = f"unpaired, other {what}" + (": no interval" if interval[0] is None else "")
    return with_interval(metric, unit, values, interval, how, **judged)


def _estimate(metric: str, section: Section, stem: str | None = None) -> Estimate:
    stem = stem or metric.removesuffix("_mean")
    return Estimate(_number(section.get(metric)), section.get(f"{stem}_low"), section.get(f"{stem}_high"))


def _speed(a: Row, b: Row, sa: Section, sb: Section) -> Iterator[Change | None]:
    metric = "ratio_to_baseline"
    if BASELINE not in (a["requested"]["format"], b["requested"]["format"]):
        interval = unpaired_factor(*(_estimate(metric, section, "ratio") for section in (sa, sb)))
        how = "unpaired rounds, each beside its own baseline" + (": no interval" if None in interval else "")
        yield with_interval(metric, "×", (sa.get(metric), sb.get(metric)), interval, how, factor=True)
    for name, unit in (("decode_ms_median", "ms"), ("prefill_tokens_per_s", "tokens/s")):
        yield single(name, unit, sa.get(name), sb.get(name), factor=True)


def _memory(a: Row, b: Row, ma: Section, mb: Section) -> Iterator[Change | None]:
    yield exact("held_bytes", "bytes", ma["held_bytes"], mb["held_bytes"])
    for name in ("prefill_peak_bytes", "decode_peak_bytes"):
        yield single(name, "bytes", ma.get(name), mb.get(name), factor=True)


def _retrieval(a: Row, b: Row, ra: Section, rb: Section) -> Iterator[Change | None]:
    ours, theirs = ra["answers"], rb["answers"]
    if not _same_samples(a, b, "depth", ours, theirs):
        yield _unpaired("exact_match", "share", (ra, rb), "samples", more_is_worse=False)
        return
    right = [[answer["right"] for answer in answers] for answers in (ours, theirs)]
    yield tested("exact_match", "share", ra["exact_match"], rb["exact_match"], right)
    gains, one_each = _moved("log_prob", ours, theirs), [1] * len(ours)
    yield _paired("log_prob", "nats/answer", (ra, rb), gains, one_each, "samples", more_is_worse=False)


def _generation(a: Row, b: Row, ga: Section, gb: Section) -> Iterator[Change | None]:
    ours, theirs = ga["texts"], gb["texts"]
    if _same_samples(a, b, "n", ours, theirs):
        n = [text["n"] for text in ours]
        yield _paired("kl_mean", NATS, (ga, gb), _moved("sum_kl", ours, theirs), n, "prompts")
    else:
        yield _unpaired("kl_mean", NATS, (ga, gb), "prompts")
    for name, unit in (("first_divergence_median", "tokens"), ("equal_tokens", "share")):
        yield single(name, unit, ga.get(name), gb.get(name))


def _same_samples(a: Row, b: Row, name: str, ours: Sequence[Section], theirs: Sequence[Section]) -> bool:
    """Whether questions or prompts are the same ones: a text, a seed and a context make them."""
    asked = [[row["requested"].get(key) for key in ("seed", "context")] for row in (a, b)]
    same = asked[0] == asked[1] and _text(a) == _text(b) and bool(ours)
    return same and [sample[name] for sample in ours] == [sample[name] for sample in theirs]


_BY_KIND: dict[str, Callable[[Row, Row, Section, Section], Iterator[Change | None]]] = {
    "quality": _quality,
    "speed": _speed,
    "memory": _memory,
    "retrieval": _retrieval,
    "generation": _generation,
}
