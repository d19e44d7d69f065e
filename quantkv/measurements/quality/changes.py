"""What is compared in two rows of quality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantkv.studies.changes import Change, exact, single
from quantkv.studies.pairs import NATS, Row, Section, moved, number, paired, text_of, unpaired


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    qa, qb = a["quality"], b["quality"]
    ours, theirs = qa.get("windows") or [], qb.get("windows") or []
    floor = max(section.get("floor_path_kl") or 0.0 for section in (qa, qb))
    if _same_windows(a, b, ours, theirs):
        n = [w["n"] for w in ours]
        gaps = [_gap(y) - _gap(x) for x, y in zip(ours, theirs)]
        yield paired("delta_nll", NATS, (qa, qb), gaps, n, "windows")
        yield paired("kl_mean", NATS, (qa, qb), moved("sum_kl", ours, theirs), n, "windows", slack=floor)
    else:
        yield unpaired("delta_nll", NATS, (qa, qb), "windows")
        yield unpaired("kl_mean", NATS, (qa, qb), "windows", slack=floor)
    if qa.get("nll_ref") != qb.get("nll_ref"):
        yield single("nll_ref", NATS, qa.get("nll_ref"), qb.get("nll_ref"))
    if qa.get("cache_bytes") and qb.get("cache_bytes"):
        yield exact("cache_bytes", "bytes", qa["cache_bytes"], qb["cache_bytes"])


def _same_windows(a: Row, b: Row, ours: Sequence[Section], theirs: Sequence[Section]) -> bool:
    """Whether both scored the same places of the same text in the same tokens."""
    places = [[(w.get("start"), w["n"]) for w in windows] for windows in (ours, theirs)]
    known = bool(places[0]) and all(start is not None for start, _ in places[0])
    return known and text_of(a) == text_of(b) and places[0] == places[1]


def _gap(window: Section) -> float:
    return number(window["sum_nll"]) - number(window["sum_nll_ref"])
