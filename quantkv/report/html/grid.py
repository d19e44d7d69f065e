"""The tables of the page: one that joins all kinds by format and context, one per kind with every number.

Columns of a kind are found in its rows, so that a new kind needs nothing here; a number and the two ends of
its interval share a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quantkv.drawing.style import rank
from quantkv.report.html.cells import Grid, Head, Line, TableCell, plain, whole
from quantkv.report.html.index import Results, cell_of_record, rows_of_records
from quantkv.report.html.joined import joined
from quantkv.report.html.tasks import part
from quantkv.studies.headings import ends_of, heading, number_text
from quantkv.studies.kind import reported
from quantkv.studies.study import JUDGE, Row, protocol_of, requested
from quantkv.wording.numbers import missing
from quantkv.wording.parts import short, subject_of, told


def grids(found: Results) -> list[Grid]:
    first = joined(found)
    verdicts = _verdicts(found)
    return ([first] if first.lines else []) + [_of_kind(found, kind, verdicts) for kind in found.kinds]


def _of_kind(found: Results, kind: str, verdicts: Mapping[int, str]) -> Grid:
    """Every row of a kind, also those that the joined table leaves out for a newer one."""
    numbers_of = found.of_kind(kind)
    rows = [found.rows[at] for at in numbers_of]
    identity = _identity(rows)
    metrics = {name: numeric for name, numeric in _metrics(rows, kind).items() if name not in identity}
    ends = ends_of(metrics)
    hidden = {name for pair in ends.values() for name in pair}
    shown = {name: numeric for name, numeric in metrics.items() if name not in hidden}
    heads = [Head("format", "", False), Head("context", "tokens", True)]
    heads += [Head(heading(name)[0], "", False) for name in identity]
    heads += [Head(*heading(name)[:2], numeric) for name, numeric in shown.items()]
    heads.append(Head("notes", "", False))
    lines = []
    for at, row, own in zip(numbers_of, rows, _settings(rows)):
        context, section = int(requested(row, "context") or 0), row.get(kind) or {}
        label = found.labels[at]
        cells = [TableCell(label, label), whole(context), *(plain(own.get(name)) for name in identity)]
        cells += [_number(name, section, ends.get(name, ())) for name in shown]
        cells.append(_remarks(row))
        verdict = verdicts.get(at, "")
        lines.append(Line(label, found.subjects[at], context, (at,), verdict, tuple(cells)))
    lines.sort(key=lambda line: (line.model, part(found.rows[line.rows[0]]), line.context, rank(line.format)))
    return Grid(kind, tuple(heads), tuple(lines))


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
        asked, ran = row.get("requested") or {}, row.get("effective") or {}
        own: dict[str, Any] = {name: short(value) for name, value in subject.items() if name not in hidden}
        own |= {name: asked.get(name) for name in ("batch", "seed")} | {"engine": ran.get("engine")}
        found.append(own | {"status": row.get("status")} | _scalars(protocol_of(row)))
    return found


def _identity(rows: Sequence[Row]) -> list[str]:
    """Settings that are not the same in all rows, in the order in which they are found."""
    own = _settings(rows)
    names = dict.fromkeys(name for settings in own for name in settings)
    return [name for name in names if len({str(settings.get(name)) for settings in own}) > 1]


def _metrics(rows: Iterable[Row], kind: str) -> dict[str, bool]:
    """Names of the single values of a kind, known ones first, and whether each is a number."""
    sections = [_scalars(row.get(kind)) for row in rows]
    names = dict.fromkeys((*reported(kind).metrics, *(name for section in sections for name in section)))
    filled = {name: [s[name] for s in sections if not missing(s.get(name))] for name in names}
    return {name: not any(isinstance(v, str) for v in values) for name, values in filled.items() if values}


def _scalars(section: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (section or {}).items() if not isinstance(value, dict | list)}


def _number(name: str, section: Mapping[str, Any], ends: Sequence[str]) -> TableCell:
    return TableCell(number_text(name, section, ends), plain(section.get(name)).sort)


def _remarks(row: Row) -> TableCell:
    """Status and reason where there are no numbers, flags, and what ran otherwise than asked."""
    status = "" if row.get("status") == "ok" else f"{row.get('status')}: {row.get('reason') or 'no reason'}"
    flags = (row.get(str(row["kind"])) or {}).get("flags") or []
    text = "; ".join(filter(None, (status, *flags, *((row.get("effective") or {}).get("notes") or []))))
    return TableCell(text, text) if text else TableCell("", None)
