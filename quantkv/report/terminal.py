"""The summary: in a file or a pipe one whole table, on a narrow terminal several below each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from quantkv.report.kind_tables import print_kinds
from quantkv.report.tables import by_context, has_seeds, name_of
from quantkv.studies.captions import caption, marks
from quantkv.studies.column import Column, Record
from quantkv.studies.columns import shown_columns
from quantkv.studies.notes import quality_notes, remarks
from quantkv.studies.study import Row, Study, studies
from quantkv.wording.numbers import tokens
from quantkv.wording.streams import print_wide

VERDICT_STYLES = {"unfit": "white on red", "caution": "yellow", "flagged": "yellow"}


def terminal_table(rows: Iterable[Row], console: Console | None = None) -> None:
    """Print the summary of ``rows``, a table per study."""
    console = console or Console()
    rows = list(rows)
    found = studies(rows)
    for study in found:
        _print_study(study, console)
    if not print_kinds(rows, console) and not found:
        console.print("no results yet")


def _print_study(study: Study, console: Console) -> None:
    records = study.records()
    console.print(Text(study.title, style="bold"))
    for table in _fitted(shown_columns(records), records, console):
        print_wide(table, console)
        console.print()
    said = [(warning, "yellow") for warning in study.warnings] + _remarks(records)
    for words, style in said + [(line, "dim") for line in (*marks(study), caption(study))]:
        console.print(Text(words, style=style), soft_wrap=not console.is_terminal)


def _remarks(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Bad rows in the colour of their verdict, then failures and flags, each said once with its rows."""
    contexts: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        if words := quality_notes(record):
            key = (name_of(record, seeds=has_seeds(records)), words, record["verdict"])
            contexts.setdefault(key, []).append(str(int(record["context"])))
    bad = [
        (f"{name} at {', '.join(where)}: {words}", VERDICT_STYLES[verdict])
        for (name, words, verdict), where in contexts.items()
    ]
    return bad + [(remark, "yellow") for remark in remarks(records, with_failures=True)]


def _fitted(columns: Sequence[Column], records: Sequence[Record], console: Console) -> list[Table]:
    """One table if it fits or nobody looks at its width; else short cells in as few tables as fit, groups
    kept together."""
    whole = _table(columns, records, short=False)
    if not console.is_terminal or _is_within(whole, console):
        return [whole]

    def fits(part: Sequence[Column]) -> bool:
        return _is_within(_table(part, records, short=True), console)

    groups = [list(group) for _, group in itertools.groupby(columns, key=lambda column: column.group)]
    parts: list[list[Column]] = [[]]
    for group in groups:
        for piece in [group] if fits(group) else [[column] for column in group]:
            if parts[-1] and not fits([*parts[-1], *piece]):
                parts.append([])
            parts[-1] += piece
    return [_table(part, records, short=True) for part in parts]


def _is_within(table: Table, console: Console) -> bool:
    wide = console.options.update(max_width=10_000)
    return Measurement.get(console, wide, table).maximum <= console.width


def _table(columns: Sequence[Column], records: Sequence[Record], *, short: bool) -> Table:
    seeds = has_seeds(records)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("ctx" if short else "context", justify="right", no_wrap=True)
    table.add_column("format", no_wrap=True)
    for column in columns:
        unit = column.unit
        if short:
            unit = unit.replace(" / ", "/").replace("tokens", "tok").replace("token", "tok")
        table.add_column(f"{column.header}\n{unit}", justify="right", no_wrap=True)
    for context, group in by_context(records):
        for index, record in enumerate(group):
            cells = [tokens(context) if index == 0 else "", name_of(record, seeds=seeds)]
            cells += [column.narrow(record) if short else column.text(record) for column in columns]
            table.add_row(*(Text(cell) for cell in cells), style=VERDICT_STYLES.get(record["verdict"]))
        table.add_section()
    return table
