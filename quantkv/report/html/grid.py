"""The tables of the page: one in which kinds meet, with the columns of every other report, and one per kind.

Columns of a kind are found in its rows, so that a new kind needs nothing here; a number and the two ends of
its interval share a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.drawing.style import rank
from quantkv.report.html.index import Cell, Results, cell_of_record, part, rows_of_records, task_rows
from quantkv.studies.column import KindColumn
from quantkv.studies.columns import printed_columns
from quantkv.studies.headings import ends_of, heading, number_text
from quantkv.studies.kind import reported, tabled
from quantkv.studies.notes import QUALITY, VERDICT_MARKS, flags_of, notes
from quantkv.studies.study import JUDGE, Record, Row, cell_of, protocol_of, requested
from quantkv.wording.numbers import DASH, missing, number
from quantkv.wording.parts import short, subject_of, told

JOINED = "all kinds"
Task = tuple[str, str]
"""A kind with a table of its own, and its part."""


@dataclass(frozen=True)
class TableCell:
    """The text that is shown and the value it is sorted by; None sorts last."""

    text: str
    sort: float | str | None


@dataclass(frozen=True)
class Head:
    text: str
    unit: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class Line:
    """One line: what filters look at, the rows it opens, and its cells; the first cell names the format.

    ``model`` says dtype and weights too where those differ.
    """

    format: str
    model: str
    context: int
    rows: tuple[int, ...]
    verdict: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Grid:
    kind: str
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]


NOTHING = TableCell(DASH, None)
START = (Head("format"), Head("context", "tokens", True))


def grids(found: Results) -> list[Grid]:
    first = _joined(found)
    verdicts = _verdicts(found)
    return ([first] if first.lines else []) + [_of_kind(found, kind, verdicts) for kind in found.kinds]


def _whole(value: Any) -> TableCell:
    return NOTHING if missing(value) else TableCell(str(int(value)), float(value))


def _plain(value: Any) -> TableCell:
    if missing(value):
        return NOTHING
    if isinstance(value, bool):
        return TableCell("yes" if value else "no", float(value))
    return TableCell(str(value), float(value) if isinstance(value, int | float) else str(value))


def _words(parts: Iterable[str]) -> TableCell:
    text = "; ".join(filter(None, parts))
    return TableCell(text, text or None)


def _of_kind(found: Results, kind: str, verdicts: Mapping[int, str]) -> Grid:
    """Every row of a kind, also those that the joined table leaves out for a newer one."""
    numbers_of = found.of_kind(kind)
    rows = [found.rows[at] for at in numbers_of]
    settings = _settings(rows)
    identity = _differing(settings)
    metrics = {name: numeric for name, numeric in _metrics(rows, kind).items() if name not in identity}
    ends = ends_of(metrics)
    hidden = {name for pair in ends.values() for name in pair}
    shown = {name: numeric for name, numeric in metrics.items() if name not in hidden}
    heads = [*START, *(Head(heading(name)[0]) for name in identity)]
    heads += [Head(*heading(name)[:2], numeric) for name, numeric in shown.items()]
    lines = []
    for at, row, own in zip(numbers_of, rows, settings):
        label, context, section = found.labels[at], int(requested(row, "context") or 0), row.get(kind) or {}
        cells = [TableCell(label, label), _whole(context), *(_plain(own.get(name)) for name in identity)]
        texts = {name: number_text(name, section, ends.get(name, ())) for name in shown}
        cells += [TableCell(text, _plain(section.get(name)).sort) for name, text in texts.items()]
        cells.append(_remarks(row))
        lines.append(Line(label, found.subjects[at], context, (at,), verdicts.get(at, ""), tuple(cells)))
    lines.sort(key=lambda line: (line.model, part(found.rows[line.rows[0]]), line.context, rank(line.format)))
    return Grid(kind, (*heads, Head("notes")), tuple(lines))


def _verdicts(found: Results) -> dict[int, str]:
    """What the records say of the rows behind them that judge."""
    said: dict[int, str] = {}
    for study in found.studies:
        sources = rows_of_records(study, found.rows)
        for record in study.records():
            for at in sources.get(cell_of_record(record), []):
                said[at] = str(record["verdict"])
    return {at: verdict for at, verdict in said.items() if found.rows[at]["kind"] == JUDGE}


def _settings(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """What was asked, how and with what engine, as far as it is single values."""
    found: list[Mapping[str, Any]] = []
    subjects = [subject_of(row) for row in rows]
    hidden = {"fingerprint"} - set(told(subjects))
    for row, subject in zip(rows, subjects):
        own: dict[str, Any] = {name: short(value) for name, value in subject.items() if name not in hidden}
        own |= {name: requested(row, name) for name in ("batch", "seed")}
        own |= {"engine": (row.get("effective") or {}).get("engine"), "status": row.get("status")}
        found.append(own | _scalars(protocol_of(row)))
    return found


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that are not the same in all rows, in the order in which they are found."""
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({str(own.get(name)) for own in settings}) > 1]


def _metrics(rows: Iterable[Row], kind: str) -> dict[str, bool]:
    """Names of the single values of a kind, known ones first, and whether each is a number."""
    sections = [_scalars(row.get(kind)) for row in rows]
    names = dict.fromkeys((*reported(kind).metrics, *(name for section in sections for name in section)))
    filled = {name: [s[name] for s in sections if not missing(s.get(name))] for name in names}
    return {name: not any(isinstance(v, str) for v in values) for name, values in filled.items() if values}


def _scalars(section: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (section or {}).items() if not isinstance(value, dict | list)}


def _remarks(row: Row) -> TableCell:
    """Status and reason where there are no numbers, flags, and what ran otherwise than asked."""
    flags = (row.get(str(row["kind"])) or {}).get("flags") or []
    return _words([_unmeasured(row), *flags, *((row.get("effective") or {}).get("notes") or [])])


def _unmeasured(row: Row) -> str:
    return "" if row.get("status") == "ok" else f"{row.get('status')}: {row.get('reason') or 'no reason'}"


class _Shape:
    """Which columns the joined table has, the same in every line."""

    def __init__(self, found: Results) -> None:
        records = [record for study in found.studies for record in study.records()]
        self.columns = printed_columns(records, batched=any(study.batch > 1 for study in found.studies))
        rows = [row for kind in tabled() for row in found.rows if row["kind"] == kind]
        self.tasks: list[Task] = sorted({(str(row["kind"]), part(row)) for row in rows})
        self.studies = len(found.studies) > 1
        seeds = {record["seed"] for record in records} | {requested(row, "seed") for row in rows}
        self.seeds = len(seeds) > 1

    def heads(self) -> tuple[Head, ...]:
        heads = [*START, *[Head("study")] * self.studies, *[Head("seed", "", True)] * self.seeds]
        heads += [Head(column.header, column.unit, True) for column in self.columns]
        heads += [Head(name, _leading(kind).short, True) for kind, name in self.tasks]
        return (*heads, Head("notes"))

    def place(self, asked: Mapping[str, Any], study: str) -> list[TableCell]:
        cells = [_whole(asked.get("context")), *[TableCell(study, study)] * self.studies]
        return cells + [_whole(asked.get("seed"))] * self.seeds


def _joined(found: Results) -> Grid:
    shape, lines = _Shape(found), list[Line]()
    alone = {at for kind in tabled() for at in found.of_kind(kind)}
    for study in found.studies:
        sources, asked = rows_of_records(study, found.rows), task_rows(study, found)
        alone -= {at for at in asked if cell_of(found.rows[at]) in sources}
        tasks = _by_cell(asked, found)
        for record in study.records():
            cell = cell_of_record(record)
            rows = sources.get(cell, [])
            lines.append(_of_record(shape, record, study.title, rows, tasks.get(cell, {}), found))
    lines += _without_record(shape, sorted(alone), found)
    return Grid(JOINED, shape.heads(), tuple(lines))


def _by_cell(numbers: Sequence[int], found: Results) -> dict[Cell, dict[Task, int]]:
    """The row of each task. Of several rows of one cell the newest that succeeded, which comes first."""
    tasks: dict[Cell, dict[Task, int]] = {}
    for at in numbers:
        row = found.rows[at]
        tasks.setdefault(cell_of(row), {}).setdefault((str(row["kind"]), part(row)), at)
    return tasks


def _of_record(
    shape: _Shape, record: Record, study: str, rows: Sequence[int], own: Mapping[Task, int], found: Results
) -> Line:
    label, verdict, numbers = record["label"], record["verdict"], (*rows, *own.values())
    name = f"{VERDICT_MARKS.get(verdict, '')} {label}".lstrip()
    cells = [TableCell(name, label), *shape.place(record, study)]
    cells += [TableCell(column.printed(record), number(record[column.value])) for column in shape.columns]
    cells += [_task(own.get(task), found) for task in shape.tasks]
    flags = [flag for flag in flags_of(record) if not flag.startswith(QUALITY)]
    cells.append(_words([notes(record), *flags, *_of_tasks(own, found)]))
    return Line(label, found.subjects[numbers[0]], int(record["context"]), numbers, verdict, tuple(cells))


def _without_record(shape: _Shape, numbers: Sequence[int], found: Results) -> Iterator[Line]:
    """Lines of tasks whose format and context have no other number."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at in numbers:
        row = found.rows[at]
        asked = (*subject_of(row).values(), str(requested(row, "batch")))
        groups.setdefault((*asked, *cell_of(row)), []).append(at)
    for members in groups.values():
        (own,) = _by_cell(members, found).values()
        asked = found.rows[members[0]]["requested"]
        label, subject = found.labels[members[0]], found.subjects[members[0]]
        cells = [TableCell(label, label), *shape.place(asked, subject), *[NOTHING] * len(shape.columns)]
        cells += [*(_task(own.get(task), found) for task in shape.tasks), _words(_of_tasks(own, found))]
        yield Line(label, subject, int(asked["context"]), tuple(own.values()), "", tuple(cells))


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
            yield f"{name} {_unmeasured(row)}"
        elif (row.get(kind) or {}).get("verdict") == "worse":
            yield f"{name}: worse than the exact cache"
