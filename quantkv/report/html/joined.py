"""The table that joins all kinds: a line for each format and context, with a column for each task beside the
columns of ``report.columns``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantkv.report.html.cells import NOTHING, Grid, Head, Line, TableCell, whole
from quantkv.report.html.index import Results, cell_of, cell_of_record, rows_of_records
from quantkv.report.html.tasks import part, task_rows
from quantkv.studies.column import Column, KindColumn
from quantkv.studies.columns import printed_columns
from quantkv.studies.kind import reported, tabled
from quantkv.studies.notes import VERDICT_MARKS, notes
from quantkv.studies.study import Record, requested
from quantkv.wording.numbers import DASH, number
from quantkv.wording.parts import subject_of

JOINED = "all kinds"
Task = tuple[str, str]
Tasks = dict[tuple[Any, ...], dict[Task, int]]
"""By spec, context and seed: the row of each task."""


class _Shape:
    """Which columns there are, the same in every line."""

    def __init__(self, found: Results) -> None:
        records = [record for study in found.studies for record in study.records()]
        batched = any(study.batch > 1 for study in found.studies)
        self.columns = printed_columns(records, batched=batched)
        rows = [row for kind in tabled() for row in found.rows if row["kind"] == kind]
        self.tasks: list[Task] = list(dict.fromkeys(sorted((str(row["kind"]), part(row)) for row in rows)))
        self.studies = len(found.studies) > 1
        seeds = {record["seed"] for record in records} | {requested(row, "seed") for row in rows}
        self.seeds = len(seeds) > 1

    def heads(self) -> tuple[Head, ...]:
        heads = [Head("format", "", False), Head("context", "tokens", True)]
        heads += [Head("study", "", False)] * self.studies
        heads += [Head("seed", "", True)] * self.seeds
        heads += [Head(column.header, column.unit, True) for column in self.columns]
        heads += [Head(name, _leading(kind).short, True) for kind, name in self.tasks]
        return (*heads, Head("notes", "", False))


def joined(found: Results) -> Grid:
    shape, lines = _Shape(found), list[Line]()
    alone = {at for kind in tabled() for at in found.of_kind(kind)}
    for study in found.studies:
        sources, asked = rows_of_records(study, found.rows), task_rows(study, found)
        alone -= {at for at in asked if cell_of(found.rows[at]) in sources}
        tasks = _by_cell(asked, found)
        for record in study.records():
            own = tasks.get(cell_of_record(record), {})
            rows = (*sources.get(cell_of_record(record), []), *own.values())
            lines.append(_of_record(shape, record, study.title, rows, own, found))
    lines += _without_record(shape, sorted(alone), found)
    return Grid(JOINED, shape.heads(), tuple(lines))


def _by_cell(numbers: Sequence[int], found: Results) -> Tasks:
    """Of several rows of one cell the newest that succeeded, which comes first."""
    tasks: Tasks = {}
    for at in numbers:
        row = found.rows[at]
        tasks.setdefault(cell_of(row), {}).setdefault((str(row["kind"]), part(row)), at)
    return tasks


def _of_record(
    shape: _Shape, record: Record, study: str, rows: Sequence[int], own: Mapping[Task, int], found: Results
) -> Line:
    mark = VERDICT_MARKS.get(record["verdict"], "")
    cells = _start(shape, f"{mark} {record['label']}".lstrip(), record["label"], record, study)
    cells += [_cell(column, record) for column in shape.columns]
    cells += [_task(own.get(task), found) for task in shape.tasks]
    cells.append(_notes([_words(record), *_of_tasks(own, found)]))
    subject = found.subjects[rows[0]]
    return Line(
        record["label"], subject, int(record["context"]), tuple(rows), record["verdict"], tuple(cells)
    )


def _without_record(shape: _Shape, numbers: Sequence[int], found: Results) -> Iterator[Line]:
    """Lines of tasks whose format and context have no other number."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at in numbers:
        row = found.rows[at]
        asked = (*subject_of(row).values(), str(requested(row, "batch")))
        groups.setdefault((*asked, *cell_of(row)), []).append(at)
    for members in groups.values():
        row, label = found.rows[members[0]], found.labels[members[0]]
        (own,) = _by_cell(members, found).values()
        subject, context = found.subjects[members[0]], int(requested(row, "context") or 0)
        cells = _start(shape, label, label, row.get("requested") or {}, subject)
        cells += [NOTHING] * len(shape.columns) + [_task(own.get(task), found) for task in shape.tasks]
        cells.append(_notes(_of_tasks(own, found)))
        yield Line(label, subject, context, tuple(own.values()), "", tuple(cells))


def _start(shape: _Shape, text: str, label: str, asked: Mapping[str, Any], study: str) -> list[TableCell]:
    cells = [TableCell(text, label), whole(asked.get("context"))]
    return cells + [TableCell(study, study)] * shape.studies + [whole(asked.get("seed"))] * shape.seeds


def _cell(column: Column, record: Record) -> TableCell:
    return TableCell(column.printed(record), number(record[column.value]))


def _leading(kind: str) -> KindColumn:
    """What stands for a kind's own table: its first column."""
    return reported(kind).table()[0]


def _task(at: int | None, found: Results) -> TableCell:
    if at is None:
        return NOTHING
    row = found.rows[at]
    kind, section = str(row["kind"]), row.get(str(row["kind"])) or {}
    if (value := number(section.get(_leading(kind).value))) is None:
        return TableCell(DASH if row.get("status") == "ok" else str(row.get("status")), None)
    return TableCell(_leading(kind).text(section), value)


def _of_tasks(own: Mapping[Task, int], found: Results) -> Iterator[str]:
    """What must not be missed: answers that got worse, and rows without numbers."""
    for (kind, name), at in own.items():
        row = found.rows[at]
        if row.get("status") != "ok":
            yield f"{name} {row.get('status')}: {row.get('reason') or 'no reason'}"
        elif (row.get(kind) or {}).get("verdict") == "worse":
            yield f"{name}: worse than the exact cache"


def _words(record: Record) -> str:
    flags = [flag for flag in str(record["flags"]).split("; ") if flag and not flag.startswith("quality: ")]
    return "; ".join(filter(None, (notes(record), *flags)))


def _notes(parts: Sequence[str] | Iterator[str]) -> TableCell:
    text = "; ".join(filter(None, parts))
    return TableCell(text, text or None)
