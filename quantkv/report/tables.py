"""The summary as Markdown, LaTeX (booktabs) and CSV: one line per format under each context.

Markdown and LaTeX round for the reader; CSV keeps every number in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from quantkv.studies.best import best_labels, rule
from quantkv.studies.captions import caption, marks
from quantkv.studies.columns import Column, shown_columns
from quantkv.studies.notes import VERDICT_MARKS, failures, notes, remarks
from quantkv.studies.study import Study
from quantkv.wording.escapes import latex, markdown, paragraph

Record = Mapping[str, Any]
SHRINK_TO_FIT = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"


def by_context(records: Iterable[Record]) -> Iterator[tuple[int, list[Record]]]:
    for context, group in itertools.groupby(records, key=lambda record: record["context"]):
        yield int(context), list(group)


def name_of(record: Record, *, seeds: bool) -> str:
    """The format's name, its seed where the study has several, and a mark in front of a bad row."""
    mark = VERDICT_MARKS.get(record["verdict"], "")
    seed = f" (seed {int(record['seed'])})" if seeds else ""
    return f"{mark} {record['label']}{seed}".lstrip()


def has_seeds(records: Sequence[Record]) -> bool:
    return len({record["seed"] for record in records}) > 1


def csv(frame: pd.DataFrame) -> str:
    """Full precision, whole numbers as such, empty where not measured."""
    return str(frame.convert_dtypes().to_csv(index=False, lineterminator="\n"))


def markdown_table(study: Study) -> str:
    """A GitHub table and its caption: the best formats of each context in bold, bad rows marked."""
    records = study.records()
    columns, seeds = shown_columns(records), has_seeds(records)
    with_notes = any(notes(record) for record in records)
    header = ["context", "format", *(f"{c.header} ({c.unit})" for c in columns)] + ["notes"] * with_notes
    lines = [pipes(header), pipes(["---:", ":---", *("---:" for _ in columns)] + [":---"] * with_notes)]
    for context, group in by_context(records):
        body = markdown_rows(group, columns, seeds=seeds, with_notes=with_notes)
        lines += [pipes([str(context), *cells]) for cells in body]
    flags = remarks(records)
    footer = (
        caption(study),
        *marks(study),
        _rule(columns, records),
        f"Flags: {'; '.join(flags)}." if flags else "",
    )
    return "\n".join([*lines, "", paragraph(" ".join(filter(None, footer))), ""])


def markdown_rows(
    group: Sequence[Record], columns: Sequence[Column], *, seeds: bool, with_notes: bool
) -> Iterator[list[str]]:
    """The cells of each record of one context, from the format's name on, the best ones in bold."""
    best = [best_labels(column, group) for column in columns]
    for index, record in enumerate(group):
        cells = [markdown(column.text(record)) for column in columns]
        cells = [f"**{cell}**" if index in winners else cell for cell, winners in zip(cells, best)]
        cells += [markdown(notes(record))] * with_notes
        yield [markdown(name_of(record, seeds=seeds)), *cells]


def pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def latex_table(study: Study) -> str:
    """A ``table*`` for booktabs: the best formats of each context in bold, bad rows marked."""
    records = study.records()
    columns = [column for column in shown_columns(records) if column.name != "rate" or study.batch > 1]
    body = [ampersands(["format", *(latex(c.header) for c in columns)])]
    body += [ampersands(["", *(latex(c.unit) for c in columns)])]
    for context, group in by_context(records):
        body += [*tex_context(context, len(columns) + 1), *tex_rows(group, columns, has_seeds(records))]
    return booktabs(_tex_caption(study, columns), f"tab:{study.slug}", f"l{'r' * len(columns)}", body)


def tex_context(context: int, columns: int) -> list[str]:
    title = rf"\textit{{{context} tokens of context}}"
    return [r"\midrule", rf"\multicolumn{{{columns}}}{{@{{}}l}}{{{title}}} \\"]


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


def tex_rows(group: Sequence[Record], columns: Sequence[Column], seeds: bool) -> list[str]:
    best = [best_labels(column, group) for column in columns]
    rows = []
    for index, record in enumerate(group):
        cells = [latex(c.short(record) if c.name == "delta" else c.text(record)) for c in columns]
        cells = [rf"\textbf{{{cell}}}" if index in winners else cell for cell, winners in zip(cells, best)]
        rows.append(ampersands([_tex_name(record, seeds), *cells]))
    return rows


def _tex_name(record: Record, seeds: bool) -> str:
    marks = {"unfit": r"$\times$", "caution": "!", "flagged": "?"}
    mark = marks.get(record["verdict"], "")
    name = latex(name_of({**record, "verdict": ""}, seeds=seeds))
    return f"{mark}~{name}" if mark else name


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


def _tex_caption(study: Study, columns: Sequence[Column]) -> str:
    records = study.records()
    flags = remarks(records, with_quality=True)
    noted = f"Notes: {'; '.join(flags)}." if flags else ""
    parts = (caption(study), *marks(study), _rule(columns, records), noted, _not_measured(records))
    return latex(" ".join(filter(None, parts)))


def _rule(columns: Sequence[Column], records: Iterable[Record]) -> str:
    return rule(columns, (group for _, group in by_context(records)))


def _not_measured(records: Iterable[Record]) -> str:
    found = [(record, failures(record)) for record in records]
    reasons = [
        f"{record['label']} at {int(record['context'])}: {'; '.join(why)}" for record, why in found if why
    ]
    return f"Not measured: {'; '.join(reasons)}." if reasons else ""


def ampersands(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
