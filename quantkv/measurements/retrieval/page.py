"""What a page draws of retrieval: shares of right answers against context, a plot for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quantkv.studies.page import RowOnPage, against
from quantkv.studies.study import Row
from quantkv.wording.numbers import number, percent

NOTE = "Share of questions answered exactly, with Wilson intervals."
EXACT = "The dotted line is the exact cache."
HOLLOW = "Hollow: the exact cache does no better than chance there, so that nothing can be concluded."
Payload = dict[str, Any]


def chart(task: str, rows: Sequence[RowOnPage]) -> Payload:
    points = [point for point in (_point(*own) for own in rows) if point["y"] is not None]
    exact = {row["requested"]["context"]: _value(row, "exact_match_ref") for _, _, row in rows}
    line = [{"x": context, "y": value} for context, value in sorted(exact.items()) if value is not None]
    title = against(f"Retrieval: {task}", [point["context"] for point in points])
    head = {"name": f"task-{task}", "title": title, "x": "context (tokens)"}
    hollow = any(point["hollow"] for point in points)
    note = " ".join(filter(None, [NOTE, EXACT if line else "", HOLLOW if hollow else ""]))
    shape = {"y": "answered exactly (share)", "scale": "share", "note": note, "bounds": []}
    guides = [{"points": line}] if line else []
    return {**head, **shape, "guides": guides, "points": points, "failed": []}


def _point(at: int, label: str, row: Row) -> Payload:
    context = int(row["requested"]["context"])
    ends = {"low": _value(row, "exact_match_low"), "high": _value(row, "exact_match_high")}
    own, exact = (percent(_value(row, name)) for name in ("exact_match", "exact_match_ref"))
    said = [label, f"{context} tokens", f"{own} % answered exactly, by the exact cache {exact} %"]
    said += [str(row["retrieval"].get("inconclusive_because") or row["retrieval"].get("verdict") or "")]
    place = {"format": label, "context": context, "x": context, "y": _value(row, "exact_match"), **ends}
    hollow = not row["retrieval"].get("conclusive", True)
    return {**place, "hollow": hollow, "rows": [at], "tip": "\n".join(filter(None, said))}


def _value(row: Row, name: str) -> float | None:
    return number(row["retrieval"].get(name))
