"""The table in which kinds meet, as Markdown and LaTeX (booktabs): one line per format under each context.

Both round for the reader; CSV keeps every number in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from quantkv.report.markup import ampersands, booktabs, github
from quantkv.studies.captions import caption, marks
from quantkv.studies.column import Column, Record, Text
from quantkv.studies.columns import Block, best_labels, printed_columns, rule, shown_columns
from quantkv.studies.notes import VERDICT_MARKS, failures, notes, remarks
from quantkv.studies.study import Study
from quantkv.wording.escapes import latex, markdown

TEX_MARKS = {"unfit": r"$\times$", "caution": "!", "flagged": "?"}


def by_context(records: Iterable[Record]) -> Iterator[tuple[int, list[Record]]]:
    for context, group in itertools.groupby(records, key=lambda record: record["context"]):
        yield int(context), list(group)


def name_of(record: Record, *, seeds: bool) -> str:
    """The format's name, its seed where the study has several, and a mark in front of a bad row."""
    mark = VERDICT_MARKS.get(record["verdict"], "")
    return f"{mark} {_plain_name(record, seeds)}".lstrip()


def _plain_name(record: Record, seeds: bool) -> str:
    return str(record["label"]) + (f" (seed {int(record['seed'])})" if seeds else "")


def has_seeds(records: Iterable[Record]) -> bool:
    return len({record["seed"] for record in records}) > 1


def markdown_table(study: Study) -> str:
    """A GitHub table and its caption: the best formats of each context in bold, bad rows marked."""
    records, blocks = study.records(), _blocks(study)
    columns, flags = shown_columns(records), remarks(records)
    noted = f"Flags: {'; '.join(flags)}." if flags else ""
    said = " ".join(filter(None, (caption(study), *marks(study), rule(columns, blocks), noted)))
    return markdown_blocks(blocks, columns, said, with_notes=any(map(notes, records)))


def latex_table(study: Study) -> str:
    """A ``table*`` for booktabs: the best formats of each context in bold, bad rows marked."""
    records, blocks = study.records(), _blocks(study)
    columns, flags = printed_columns(records, batched=study.batch > 1), remarks(records, with_quality=True)
    noted = f"Notes: {'; '.join(flags)}." if flags else ""
    said = (caption(study), *marks(study), rule(columns, blocks), noted, _not_measured(records))
    return latex_blocks(blocks, columns, " ".join(filter(None, said)), study.slug)


def markdown_blocks(
    blocks: Sequence[Block], columns: Sequence[Column], said: str, *, with_notes: bool = False
) -> str:
    """A GitHub table; a column says the labels of the blocks, where they have any."""
    named, seeds = _told(blocks)
    header = ["context", *["model"] * named, "format", *(f"{c.header} ({c.unit})" for c in columns)]
    body = [
        [str(context), *[markdown(label)] * named, markdown(name_of(record, seeds=seeds)), *cells]
        + [markdown(notes(record))] * with_notes
        for context, label, group in blocks
        for record, cells in _rows(group, columns, lambda column: column.text, markdown, "**{}**")
    ]
    sides = "r" + "l" * named + "l" + "r" * len(columns) + "l" * with_notes
    return github(header + ["notes"] * with_notes, sides, body, said)


def latex_blocks(blocks: Sequence[Block], columns: Sequence[Column], said: str, slug: str) -> str:
    """The same as a ``table*``, a line above the formats of each context."""
    named, seeds = _told(blocks)
    heads = ([latex(getattr(column, name)) for column in columns] for name in ("header", "unit"))
    starts = (["model"] * named + ["format"], [""] * named + [""])
    body = [ampersands([*start, *head]) for start, head in zip(starts, heads)]
    for context, groups in itertools.groupby(blocks, key=lambda block: block[0]):
        title = rf"\textit{{{context} tokens of context}}"
        body += [r"\midrule", rf"\multicolumn{{{len(columns) + 1 + named}}}{{@{{}}l}}{{{title}}} \\"]
        body += [
            ampersands([*[latex(label)] * named, _tex_name(record, seeds), *cells])
            for _, label, group in groups
            for record, cells in _rows(group, columns, lambda column: column.printed, latex, r"\textbf{{{}}}")
        ]
    return booktabs(latex(said), f"tab:{slug}", "l" * named + "l" + "r" * len(columns), body)


def _rows(
    group: Sequence[Record],
    columns: Sequence[Column],
    text: Callable[[Column], Text],
    escape: Callable[[str], str],
    bold: str,
) -> Iterator[tuple[Record, list[str]]]:
    """Each record of a block with its cells, the best ones in bold."""
    best = [best_labels(column, group) for column in columns]
    for index, record in enumerate(group):
        cells = [escape(text(column)(record)) for column in columns]
        yield record, [bold.format(cell) if index in own else cell for cell, own in zip(cells, best)]


def _told(blocks: Sequence[Block]) -> tuple[bool, bool]:
    """Whether blocks have labels, and their records several seeds."""
    records = [record for _, _, group in blocks for record in group]
    return any(label for _, label, _ in blocks), has_seeds(records)


def _blocks(study: Study) -> list[Block]:
    return [(context, "", group) for context, group in by_context(study.records())]


def _tex_name(record: Record, seeds: bool) -> str:
    mark, name = TEX_MARKS.get(record["verdict"], ""), latex(_plain_name(record, seeds))
    return f"{mark}~{name}" if mark else name


def _not_measured(records: Iterable[Record]) -> str:
    found = [(record, failures(record)) for record in records]
    reasons = [
        f"{record['label']} at {int(record['context'])}: {'; '.join(why)}" for record, why in found if why
    ]
    return f"Not measured: {'; '.join(reasons)}." if reasons else ""
