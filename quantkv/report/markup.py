"""A table or a figure as Markdown, LaTeX or CSV, from cells that are such text already.

Own lines: pandas' writers know no captions under a GitHub table, no rows of groups, no shrinking to the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quantkv.wording.escapes import latex, paragraph

if TYPE_CHECKING:
    import pandas as pd

SIDES = {"l": ":---", "r": "---:"}
SHRINK_TO_FIT = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"


def csv(frame: pd.DataFrame) -> str:
    """Full precision, whole numbers as such, empty where not measured."""
    return str(frame.convert_dtypes().to_csv(index=False, lineterminator="\n"))


def github(header: Sequence[str], alignment: str, body: Iterable[Sequence[str]], said: str) -> str:
    """A GitHub table, with an l or an r for each column, and below it what is said of it."""
    table = (header, [SIDES[side] for side in alignment], *body)
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in table), "", paragraph(said), ""])


def ampersands(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def booktabs(caption: str, label: str, alignment: str, body: Sequence[str]) -> str:
    """A ``table*`` that never is wider than the page."""
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        r"\vspace{4pt}",
        SHRINK_TO_FIT,
        rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table*}",
    ]
    return "\n".join([*lines, ""])


def latex_figure(file: str, caption: str, *, wide: bool) -> str:
    """A figure environment; the caption says what the picture shows and how its numbers were made."""
    environment, width = ("figure*", r"\textwidth") if wide else ("figure", r"\columnwidth")
    lines = [
        rf"\begin{{{environment}}}[t]",
        r"\centering",
        rf"\includegraphics[width={width}]{{{file}}}",
        rf"\caption{{{latex(caption)}}}",
        rf"\label{{fig:{file.rsplit('.', 1)[0]}}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join([*lines, ""])
