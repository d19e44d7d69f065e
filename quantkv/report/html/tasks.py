"""Retrieval and generation on the page: which rows stand with a study, and a plot for each task of retrieval.

Rows of tasks belong to no study; they stand with the studies of the same model, weights and dtype.
"""

from __future__ import annotations

from typing import Any

from quantkv.report.html.index import Results, number
from quantkv.report.html.titles import against
from quantkv.studies.groups import part_of
from quantkv.studies.kind import reported, tabled
from quantkv.studies.study import Row, Study, citation, requested
from quantkv.wording.numbers import percent
from quantkv.wording.parts import fingerprint_of

SAME = ("model", "revision", "dtype", "batch")
NOTE = "Share of questions answered exactly, with Wilson intervals."
EXACT = "The dotted line is the exact cache."
HOLLOW = "Hollow: the exact cache does no better than chance there, so that nothing can be concluded."
Payload = dict[str, Any]


def task_rows(study: Study, found: Results) -> list[int]:
    """Rows of tasks that were asked of the study's model; none where the study is made of others' numbers."""
    if citation(study.rows[0]):
        return []
    asked, weights = _asked(study.rows[0]), study.identity["fingerprint"]
    numbers = [at for kind in tabled() for at in found.of_kind(kind)]
    own = [at for at in numbers if _asked(found.rows[at]) == asked]
    return [at for at in own if not weights or fingerprint_of(found.rows[at]) in ("", weights)]


def _asked(row: Row) -> list[Any]:
    return [requested(row, name) for name in SAME]


def part(row: Row) -> str:
    """The task of a retrieval row, the mode of a generation row."""
    kind = reported(row["kind"])
    return str((row.get(kind.name) or {}).get(kind.part) or part_of(row))


def task_charts(study: Study, found: Results) -> list[Payload]:
    """A chart for each task that was asked of the study's model; none without retrieval rows."""
    numbers = [at for at in task_rows(study, found) if found.rows[at].get("retrieval")]
    tasks = sorted({part(found.rows[at]) for at in numbers})
    return [_chart(task, [at for at in numbers if part(found.rows[at]) == task], found) for task in tasks]


def _chart(task: str, numbers: list[int], found: Results) -> Payload:
    points = [point for point in (_point(at, found) for at in numbers) if point["y"] is not None]
    exact = {
        found.rows[at]["requested"]["context"]: _value(found.rows[at], "exact_match_ref") for at in numbers
    }
    line = [{"x": context, "y": value} for context, value in sorted(exact.items()) if value is not None]
    title = against(f"Retrieval: {task}", [point["context"] for point in points])
    head = {"name": f"task-{task}", "title": title, "x": "context (tokens)"}
    note = " ".join([NOTE] + [EXACT] * bool(line) + [HOLLOW] * any(point["hollow"] for point in points))
    shape = {"y": "answered exactly (share)", "scale": "share", "note": note, "bounds": []}
    return {**head, **shape, "guides": [{"points": line}] * bool(line), "points": points, "failed": []}


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
