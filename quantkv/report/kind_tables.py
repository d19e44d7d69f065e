"""The tables of kinds that have their own, a line per row: in Markdown, LaTeX and CSV, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quantkv.report.markup import ampersands, booktabs, csv, github
from quantkv.rows.frames import to_frame
from quantkv.studies.captions import checkpoint, environment
from quantkv.studies.column import KindColumn
from quantkv.studies.groups import Group, Row, groups, part_of
from quantkv.studies.kind import reported, tabled
from quantkv.wording.escapes import latex, markdown
from quantkv.wording.numbers import DASH
from quantkv.wording.streams import print_wide


class _Table(NamedTuple):
    """Its header, that for narrow places, an l or an r for each column, its lines, and why nothing can be
    concluded from some of them, each said once."""

    header: list[str]
    narrow: list[str]
    sides: str
    lines: list[list[str]]
    remarks: list[str]


def kind_tables(rows: Sequence[Row], endings: Iterable[str]) -> dict[str, str]:
    """File name to text: ``retrieval.md``, ``generation.csv``, ... for the kinds there are rows of."""
    writers = {"md": _markdown, "tex": _latex, "csv": _csv}
    found = {kind: groups(rows, kind) for kind in tabled()}
    return {
        f"{kind}.{ending}": writers[ending](own) for kind, own in found.items() for ending in endings if own
    }


def print_kinds(rows: Sequence[Row], console: Console) -> bool:
    """Print the tables; False where there is none."""
    found = [group for kind in tabled() for group in groups(rows, kind)]
    for group in found:
        own = _table(group)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in own.narrow:
            table.add_column(name, no_wrap=True)
        for line in own.lines:
            table.add_row(*map(Text, line))
        console.print(Text(f"{group.title}, {group.kind}", style="bold"))
        print_wide(table, console)
        console.print()
        for words, style in [(why, "yellow") for why in own.remarks] + [(caption(group), "dim")]:
            console.print(Text(words, style=style), soft_wrap=not console.is_terminal)
    return bool(found)


def caption(group: Group) -> str:
    """How the numbers were made."""
    own = reported(group.kind).caption(group.rows).removesuffix(".")
    model = f"{group.model} ({', '.join(checkpoint(group))})"
    return f"{model}: {own}. {environment(group.rows)}".rstrip()


def _table(group: Group) -> _Table:
    kind = reported(group.kind)
    columns, part = kind.table(), [kind.part] if kind.part else []
    seeds = len({row["requested"]["seed"] for row in group.rows}) > 1
    inconclusive = [
        f"inconclusive: {part_of(row)} at {row['requested']['context']}: {why}"
        for row in group.rows
        if row["status"] == "ok" and (why := row[group.kind].get("inconclusive_because"))
    ]
    return _Table(
        [*part, "context", "format", *(column.header for column in columns)],
        [*part, "ctx", "format", *(column.short for column in columns)],
        "l" * len(part) + "rl" + "r" * len(columns),
        [_cells(row, columns, seeds=seeds) for row in group.rows],
        list(dict.fromkeys(inconclusive)),
    )


def _cells(row: Row, columns: Sequence[KindColumn], *, seeds: bool) -> list[str]:
    """A line of the table; a row without numbers says why in its last cell."""
    asked, kind = row["requested"], reported(row["kind"])
    label = f"{asked['format']} (seed {asked['seed']})" if seeds else str(asked["format"])
    start = [*([part_of(row)] if kind.part else []), str(asked["context"]), label]
    if row["status"] != "ok":
        return [*start, *[DASH] * (len(columns) - 1), f"{row['status']}: {row['reason']}"]
    return [*start, *(column.text(row[kind.name]) for column in columns)]


def _markdown(found: Sequence[Group]) -> str:
    texts = []
    for group in found:
        own = _table(group)
        title = [f"## {markdown(group.title)}", ""] if len(found) > 1 else []
        said = " ".join([*(f"{why}." for why in own.remarks), caption(group)])
        body = [list(map(markdown, line)) for line in own.lines]
        texts.append("\n".join([*title, github(own.header, own.sides, body, said)]))
    return "\n".join(texts)


def _latex(found: Sequence[Group]) -> str:
    texts = []
    for group in found:
        own = _table(group)
        label = f"{group.kind}-{group.slug}" if len(found) > 1 else group.kind
        said = latex(" ".join([caption(group), *(f"{why}." for why in own.remarks)]))
        header, *body = (ampersands(map(latex, line)) for line in [own.header, *own.lines])
        texts.append(booktabs(said, f"tab:{label}", own.sides, [header, r"\midrule", *body]))
    return "\n".join(texts)


def _csv(found: Sequence[Group]) -> str:
    """Every number in full, columns as ``load_results`` names them."""
    return csv(to_frame([row for group in found for row in group.rows]))
