"""What is said of quality: how it was measured, and what changed between two rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quantkv.studies.changes import (
    NATS,
    Change,
    Row,
    Section,
    exact,
    moved,
    number,
    paired,
    single,
    text_of,
    unpaired,
)
from quantkv.wording.numbers import compact, missing
from quantkv.wording.parts import DIGITS, listed

BOS = {"per_window": "BOS in each window", "text": "one BOS before the text"}


def caption(rows: Sequence[Row]) -> str:
    from quantkv.studies.study import protocol_of

    protocol = [protocol_of(row) for row in rows]
    text = listed(p.get("text") for p in protocol)
    digest = listed(str(p["text_sha256"])[:DIGITS] for p in protocol if p.get("text_sha256"))
    parts = [f"Quality: text {text}" + (f" (sha256 {digest})" if digest else "")]
    parts.append(f"prefill {listed(p.get('prefill') for p in protocol)}")
    windows, score = (listed(p.get(name) for p in protocol) for name in ("windows", "score"))
    scored = [row["quality"] for row in rows if row.get("quality")]
    intervals = any(not missing(section.get("kl_low")) for section in scored)
    few = ", too few to rank formats by" if scored and not intervals else ""
    parts.append(f"{windows} {'window' if windows == '1' else 'windows'} of {score} scored tokens{few}")
    if bos := listed(p.get("bos") for p in protocol):
        parts.append(BOS.get(bos, f"BOS {bos}"))
    if preset := listed(p.get("preset") for p in protocol):
        parts.append(f"protocol {preset}")
    against = "KL and ΔNLL against the exact cache" + ", intervals over windows" * intervals
    return "; ".join([", ".join(parts), against, *_bf16_scale(rows)]) + "."


def _bf16_scale(rows: Sequence[Row]) -> list[str]:
    """For a sense of relevance: what the model loses in bfloat16, by context where that differs."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        if (scale := (row.get("quality") or {}).get("scale_bf16_kl")) is not None:
            found.setdefault(compact(scale), []).append(row["requested"].get("context"))
    said = [f"{scale} at {listed(sorted(set(contexts)))}" for scale, contexts in found.items()]
    return [f"KL of the model in bf16 {', '.join(said)}"] if said else []


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
