"""Kinds with a table of their own on the page: which rows stand with a study, and a plot for each part.

Such rows belong to no study; they stand with the studies of the same model, weights and dtype.
"""

from __future__ import annotations

from typing import Any

from quantkv.measurements.kind import kind
from quantkv.report.html.index import Results
from quantkv.studies.groups import part_of
from quantkv.studies.kind import reported, tabled
from quantkv.studies.page import RowOnPage
from quantkv.studies.study import Row, Study, citation, requested
from quantkv.wording.parts import fingerprint_of

SAME = ("model", "revision", "dtype", "batch")
Payload = dict[str, Any]


def task_rows(study: Study, found: Results) -> list[int]:
    """Rows of tasks that were asked of the study's model; none where the study is made of others' numbers."""
    if citation(study.rows[0]):
        return []
    asked, weights = _asked(study.rows[0]), study.identity["fingerprint"]
    numbers = [at for name in tabled() for at in found.of_kind(name)]
    own = [at for at in numbers if _asked(found.rows[at]) == asked]
    return [at for at in own if not weights or fingerprint_of(found.rows[at]) in ("", weights)]


def _asked(row: Row) -> list[Any]:
    return [requested(row, name) for name in SAME]


def part(row: Row) -> str:
    """The task of a retrieval row, the mode of a generation row."""
    own = reported(row["kind"])
    return str((row.get(own.name) or {}).get(own.part) or part_of(row))


def task_charts(study: Study, found: Results) -> list[Payload]:
    """The charts of all parts that were asked of the study's model."""
    own: dict[tuple[str, str], list[RowOnPage]] = {}
    for at in task_rows(study, found):
        row = found.rows[at]
        if row.get(row["kind"]):
            own.setdefault((row["kind"], part(row)), []).append((at, found.labels[at], row))
    charts = (kind(name).chart(part_, own[name, part_]) for name, part_ in sorted(own))
    return [chart for chart in charts if chart is not None]
