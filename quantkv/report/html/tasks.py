"""Plots of retrieval: for each task the share of questions answered, format by format, against context.

Rows of tasks belong to no study; they stand with the studies of the same model and dtype.
"""

from __future__ import annotations

from typing import Any

from quantkv.report.html.index import Results, number
from quantkv.report.numbers import percent
from quantkv.report.summary import Row, Study, requested

SAME = ("model", "revision", "dtype", "batch")
NOTE = (
    "Share of questions answered exactly, with Wilson intervals; hollow: the exact cache does no better than "
    "chance there, so that nothing can be concluded. The dotted line is the exact cache."
)
Payload = dict[str, Any]


def task_charts(study: Study, found: Results) -> list[Payload]:
    """A chart for each task that was asked of the study's model; none without retrieval rows."""
    asked = [requested(study.rows[0], name) for name in SAME]
    numbers = [
        at
        for at in found.of_kind("retrieval")
        if [requested(found.rows[at], name) for name in SAME] == asked and found.rows[at].get("retrieval")
    ]
    tasks = sorted({str(found.rows[at]["retrieval"].get("task")) for at in numbers})
    return [_chart(task, [at for at in numbers if _task(found.rows[at]) == task], found) for task in tasks]


def _task(row: Row) -> str:
    return str(row["retrieval"].get("task"))


def _chart(task: str, numbers: list[int], found: Results) -> Payload:
    points = [_point(at, found) for at in numbers]
    exact = {
        found.rows[at]["requested"]["context"]: _value(found.rows[at], "exact_match_ref") for at in numbers
    }
    line = [{"x": context, "y": value} for context, value in sorted(exact.items()) if value is not None]
    head = {"name": f"task-{task}", "title": f"Retrieval against context: {task}", "x": "context (tokens)"}
    shape = {"y": "answered exactly (share)", "scale": "share", "note": NOTE, "bounds": []}
    known = [point for point in points if point["y"] is not None]
    return {**head, **shape, "guides": [{"points": line}], "points": known, "failed": []}


def _point(at: int, found: Results) -> Payload:
    row, label = found.rows[at], found.labels[at]
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
