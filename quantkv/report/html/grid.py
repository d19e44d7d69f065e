"""The tables of the page: one that joins all kinds by format and context, one per kind with every number.

A cell is the text that is shown and the value it is sorted by; None sorts last. The joined table has the
columns of ``report.columns``; those of a kind are found in its rows, so that a new kind needs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.report import numbers
from quantkv.report.columns import Column, shown_columns
from quantkv.report.html.headings import heading
from quantkv.report.html.index import Results, cell_of_record, number, rows_of_records, study_names
from quantkv.report.notes import VERDICT_MARKS, notes
from quantkv.report.numbers import DASH, missing
from quantkv.report.style import rank
from quantkv.report.summary import METRICS, Record, Row, protocol_of, requested

JOINED = "all kinds"
VALUES = {
    "bits": "bits_packed",
    "memory": "held_bytes",
    "memory_ratio": "ratio_to_16bit",
    "decode": "decode_ms_median",
    "ratio": "ratio_to_baseline",
    "rate": "decode_tokens_per_s",
    "published": "perplexity",
    "ppl": "ppl_ratio",
    "delta": "delta_nll",
    "kl": "kl_mean",
    "top1": "top1_agreement",
    "top5": "top5_agreement",
}
"""What a column of ``report.columns`` is sorted by, where its name is not that of the number."""
DIGITS = 5


@dataclass(frozen=True)
class Cell:
    text: str
    sort: float | str | None


@dataclass(frozen=True)
class Head:
    text: str
    unit: str
    numeric: bool


@dataclass(frozen=True)
class Line:
    """One line: what filters look at, the rows it opens, and its cells; the first cell names the format."""

    format: str
    model: str
    context: int
    rows: tuple[int, ...]
    verdict: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    kind: str
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]


def grids(found: Results) -> list[Grid]:
    joined = _joined(found)
    verdicts = _verdicts(found)
    return ([joined] if joined.lines else []) + [_of_kind(found, kind, verdicts) for kind in found.kinds]


def _joined(found: Results) -> Grid:
    names = study_names(found.studies)
    records = [record for study in found.studies for record in study.records()]
    batched = any(study.batch > 1 for study in found.studies)
    columns = [column for column in shown_columns(records) if column.name != "rate" or batched]
    seeds = len({record["seed"] for record in records}) > 1
    lines = []
    for study, name in zip(found.studies, names):
        sources = rows_of_records(study, found.rows)
        for record in study.records():
            first = [_format(record), _whole(record["context"])]
            first += [Cell(name, name)] * (len(names) > 1) + [_whole(record["seed"])] * seeds
            cells = [*first, *(_cell(column, record) for column in columns), _notes(record)]
            lines.append(_line(record, tuple(sources.get(cell_of_record(record), [])), tuple(cells)))
    heads = [Head("format", "", False), Head("context", "tokens", True)]
    heads += [Head("study", "", False)] * (len(names) > 1)
    heads += [Head("seed", "", True)] * seeds
    heads += [*(Head(column.header, column.unit, True) for column in columns), Head("notes", "", False)]
    return Grid(JOINED, tuple(heads), tuple(lines))


def _line(record: Record, rows: tuple[int, ...], cells: tuple[Cell, ...]) -> Line:
    model, verdict = str(record["model"]), record["verdict"]
    return Line(record["label"], model, int(record["context"]), rows, verdict, cells)


def _format(record: Record) -> Cell:
    mark = VERDICT_MARKS.get(record["verdict"], "")
    return Cell(f"{mark} {record['label']}".lstrip(), record["label"])


def _cell(column: Column, record: Record) -> Cell:
    text = (column.short if column.name == "delta" else column.text)(record)
    name = VALUES.get(column.name, column.name)
    return Cell(text, number(record[name]) if name in record else number(column.badness(record)))


def _notes(record: Record) -> Cell:
    flags = [flag for flag in str(record["flags"]).split("; ") if flag and not flag.startswith("quality: ")]
    text = "; ".join(filter(None, (notes(record), *flags)))
    return Cell(text, text or None)


def _of_kind(found: Results, kind: str, verdicts: Mapping[int, str]) -> Grid:
    """Every row of a kind, also those that the joined table leaves out for a newer one."""
    numbers_of = found.of_kind(kind)
    rows = [found.rows[at] for at in numbers_of]
    identity = _identity(rows)
    metrics = {name: numeric for name, numeric in _metrics(rows, kind).items() if name not in identity}
    heads = [Head("format", "", False), Head("context", "tokens", True)]
    heads += [Head(name, "", False) for name in identity]
    heads += [Head(*heading(name)[:2], numeric) for name, numeric in metrics.items()]
    heads.append(Head("notes", "", False))
    lines = []
    for at, row, own in zip(numbers_of, rows, _settings(rows)):
        context = int(requested(row, "context") or 0)
        label = found.labels[at]
        cells = [Cell(label, label), _whole(context), *(_any(own.get(name)) for name in identity)]
        cells += [_metric(name, (row.get(kind) or {}).get(name)) for name in metrics]
        cells.append(_remarks(row))
        verdict = verdicts.get(at, "")
        lines.append(Line(label, str(requested(row, "model")), context, (at,), verdict, tuple(cells)))
    lines.sort(key=lambda line: (line.model, line.context, rank(line.format)))
    return Grid(kind, tuple(heads), tuple(lines))


def _verdicts(found: Results) -> dict[int, str]:
    """What the records say of the quality rows behind them."""
    said: dict[int, str] = {}
    for study in found.studies:
        sources = rows_of_records(study, found.rows)
        for record in study.records():
            for at in sources.get(cell_of_record(record), []):
                said[at] = str(record["verdict"])
    return {at: verdict for at, verdict in said.items() if found.rows[at]["kind"] == "quality"}


def _settings(rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    """What was asked, how and with what engine, as far as it is single values."""
    found: list[Mapping[str, Any]] = []
    for row in rows:
        asked, ran = row.get("requested") or {}, row.get("effective") or {}
        named = ("model", "revision", "dtype", "batch", "seed")
        own = {name: asked.get(name) for name in named} | {"engine": ran.get("engine")}
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
    names = dict.fromkeys((*METRICS.get(kind, ()), *(name for section in sections for name in section)))
    filled = {name: [s[name] for s in sections if not missing(s.get(name))] for name in names}
    return {name: not any(isinstance(v, str) for v in values) for name, values in filled.items() if values}


def _scalars(section: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (section or {}).items() if not isinstance(value, dict | list)}


def _metric(name: str, value: Any) -> Cell:
    if missing(value) or isinstance(value, str | bool):
        return _any(value)
    scale = heading(name)[2]
    if isinstance(value, int) and scale == 1:
        return _whole(value)
    return Cell(_digits(value * scale), float(value))


def _digits(value: float) -> str:
    return numbers.compact(value, DIGITS) if abs(value) < 1 else numbers.significant(value, DIGITS)


def _whole(value: Any) -> Cell:
    return Cell(DASH, None) if missing(value) else Cell(str(int(value)), float(value))


def _any(value: Any) -> Cell:
    if missing(value):
        return Cell(DASH, None)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", float(value))
    return Cell(str(value), float(value) if isinstance(value, int | float) else str(value))


def _remarks(row: Row) -> Cell:
    """Status and reason where there are no numbers, flags, and what ran otherwise than asked."""
    status = "" if row.get("status") == "ok" else f"{row.get('status')}: {row.get('reason') or 'no reason'}"
    flags = (row.get(str(row["kind"])) or {}).get("flags") or []
    text = "; ".join(filter(None, (status, *flags, *((row.get("effective") or {}).get("notes") or []))))
    return Cell(text, text or None)
