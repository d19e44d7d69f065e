"""The tables as Markdown, LaTeX and CSV, and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quantkv.report.behaviour_columns import caption, header, lines, remarks
from quantkv.report.tables import csv, pipes
from quantkv.studies.groups import KINDS, Group, Row, groups
from quantkv.wording.escapes import latex, markdown, paragraph
from quantkv.wording.wide import print_wide


def behaviour_tables(rows: Sequence[Row], kinds: Iterable[str]) -> dict[str, str]:
    """File name to text: ``retrieval.md``, ``generation.csv``, ... for the kinds there are rows of."""
    writers = {"md": _markdown, "tex": _latex}
    texts: dict[str, str] = {}
    for kind in KINDS:
        found = groups(rows, kind)
        for ending in kinds if found else ():
            texts[f"{kind}.{ending}"] = (
                _csv(found)
                if ending == "csv"
                else "\n".join(writers[ending](group, len(found) > 1) for group in found)
            )
    return texts


def print_behaviour(rows: Sequence[Row], console: Console) -> bool:
    """Print the tables; False where there is none."""
    found = [group for kind in KINDS for group in groups(rows, kind)]
    for group in found:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in header(group, short=True):
            table.add_column(name, no_wrap=True)
        for line in lines(group):
            table.add_row(*map(Text, line))
        console.print(Text(f"{group.title}, {group.kind}", style="bold"))
        print_wide(table, console)
        console.print()
        for words, style in [(why, "yellow") for why in remarks(group)] + [(caption(group), "dim")]:
            console.print(Text(words, style=style), soft_wrap=not console.is_terminal)
    return bool(found)


def _markdown(group: Group, several: bool) -> str:
    title = [f"## {markdown(group.title)}", ""] if several else []
    names = header(group)
    body = [pipes([markdown(cell) for cell in line]) for line in lines(group)]
    aligned = [":---", "---:", ":---", *["---:"] * (len(names) - 3)]
    said = " ".join([*(f"{why}." for why in remarks(group)), caption(group)])
    return "\n".join([*title, pipes(names), pipes(aligned), *body, "", paragraph(said), ""])


def _latex(group: Group, several: bool) -> str:
    """A ``table*`` for booktabs."""
    label = f"{group.kind}-{group.slug}" if several else group.kind
    names = header(group)
    table = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{latex(' '.join([caption(group), *(f'{why}.' for why in remarks(group))]))}}}",
        rf"\label{{tab:{label}}}",
        r"\vspace{4pt}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}lrl{'r' * (len(names) - 3)}@{{}}}}",
        r"\toprule",
        *(" & ".join(map(latex, line)) + r" \\" for line in [names]),
        r"\midrule",
        *(" & ".join(map(latex, line)) + r" \\" for line in lines(group)),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table*}",
    ]
    return "\n".join([*table, ""])


def _csv(found: Iterable[Group]) -> str:
    """Every number in full, columns as ``load_results`` names them."""
    from quantkv.rows.files import to_frame

    return csv(to_frame([row for group in found for row in group.rows]))
