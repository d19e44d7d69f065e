"""The tables of kinds that have their own, a line per row: in Markdown, LaTeX and CSV, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quantkv.report.markup import ampersands, booktabs, csv, pipes
from quantkv.rows.frames import to_frame
from quantkv.studies.captions import environment, fingerprint, precision
from quantkv.studies.groups import Group, Row, groups, part_of
from quantkv.studies.kind import reported, tabled
from quantkv.wording.escapes import latex, markdown, paragraph
from quantkv.wording.numbers import DASH
from quantkv.wording.streams import print_wide


def kind_tables(rows: Sequence[Row], endings: Iterable[str]) -> dict[str, str]:
    """File name to text: ``retrieval.md``, ``generation.csv``, ... for the kinds there are rows of."""
    writers = {"md": _markdown, "tex": _latex}
    texts: dict[str, str] = {}
    for kind in tabled():
        found = groups(rows, kind)
        for ending in endings if found else ():
            texts[f"{kind}.{ending}"] = (
                _csv(found)
                if ending == "csv"
                else "\n".join(writers[ending](group, len(found) > 1) for group in found)
            )
    return texts


def print_kinds(rows: Sequence[Row], console: Console) -> bool:
    """Print the tables; False where there is none."""
    found = [group for kind in tabled() for group in groups(rows, kind)]
    for group in found:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in _header(group, short=True):
            table.add_column(name, no_wrap=True)
        for line in _lines(group):
            table.add_row(*map(Text, line))
        console.print(Text(f"{group.title}, {group.kind}", style="bold"))
        print_wide(table, console)
        console.print()
        for words, style in [(why, "yellow") for why in _remarks(group)] + [(caption(group), "dim")]:
            console.print(Text(words, style=style), soft_wrap=not console.is_terminal)
    return bool(found)


def caption(group: Group) -> str:
    """How the numbers were made."""
    model = f"{group.model} ({', '.join([*precision(group.rows), *fingerprint(group)])})"
    own = reported(group.kind).caption(group.rows).removesuffix(".")
    return f"{model}: {own}. {environment(group.rows)}".rstrip()


def _start(kind: str) -> list[tuple[str, str, str]]:
    """Header, header for narrow places and alignment of the columns that say which row a line is of."""
    part = reported(kind).part
    names = [(part, part, "l")] if part else []
    return [*names, ("context", "ctx", "r"), ("format", "format", "l")]


def _header(group: Group, *, short: bool = False) -> list[str]:
    start = [narrow if short else name for name, narrow, _ in _start(group.kind)]
    return start + [column.short if short else column.header for column in reported(group.kind).table()]


def _alignment(group: Group) -> str:
    start = "".join(side for _, _, side in _start(group.kind))
    return start + "r" * len(reported(group.kind).table())


def _lines(group: Group) -> list[list[str]]:
    seeds = len({row["requested"]["seed"] for row in group.rows}) > 1
    return [_cells(row, seeds=seeds) for row in group.rows]


def _cells(row: Row, *, seeds: bool) -> list[str]:
    """A line of the table; a row without numbers says why in its last cell."""
    asked, kind = row["requested"], reported(row["kind"])
    columns = kind.table()
    label = f"{asked['format']} (seed {asked['seed']})" if seeds else str(asked["format"])
    part = [part_of(row)] if kind.part else []
    start = [*part, str(asked["context"]), label]
    if row["status"] != "ok":
        return [*start, *[DASH] * (len(columns) - 1), f"{row['status']}: {row['reason']}"]
    return [*start, *(column.text(row[kind.name]) for column in columns)]


def _remarks(group: Group) -> list[str]:
    """Why nothing can be concluded from some rows, each said once."""
    said: dict[str, None] = {}
    for row in group.rows:
        if row["status"] == "ok" and (why := row[group.kind].get("inconclusive_because")):
            said[f"inconclusive: {part_of(row)} at {row['requested']['context']}: {why}"] = None
    return list(said)


def _markdown(group: Group, several: bool) -> str:
    title = [f"## {markdown(group.title)}", ""] if several else []
    body = [[markdown(cell) for cell in line] for line in _lines(group)]
    said = " ".join([*(f"{why}." for why in _remarks(group)), caption(group)])
    return "\n".join([*title, *pipes(_header(group), _alignment(group), body), "", paragraph(said), ""])


def _latex(group: Group, several: bool) -> str:
    label = f"{group.kind}-{group.slug}" if several else group.kind
    said = latex(" ".join([caption(group), *(f"{why}." for why in _remarks(group))]))
    header, *body = (ampersands(map(latex, line)) for line in [_header(group), *_lines(group)])
    return booktabs(said, f"tab:{label}", _alignment(group), [header, r"\midrule", *body])


def _csv(found: Iterable[Group]) -> str:
    """Every number in full, columns as ``load_results`` names them."""
    return csv(to_frame([row for group in found for row in group.rows]))
