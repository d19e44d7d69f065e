"""The files of a report about retrieval and generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quantkv.report.behaviour.groups import Row, groups
from quantkv.report.behaviour.tables import behaviour_tables


def behaviour_files(
    rows: Sequence[Row], tables: Iterable[str], figures: Iterable[str]
) -> Iterator[tuple[str, bytes]]:
    """Name and content: tables of these kinds, then the heat maps of retrieval in these file types."""
    for name, text in behaviour_tables(rows, tables).items():
        yield name, text.encode()
    found = [group for group in groups(rows, "retrieval") if any(row["status"] == "ok" for row in group.rows)]
    kinds = list(figures)
    for index, group in enumerate(found if kinds else ()):
        from quantkv.report.behaviour.heatmap import needle_figure
        from quantkv.report.plots import rendered

        figure = needle_figure(group)
        stem = "retrieval" if len(found) == 1 else f"retrieval-{index + 1}"
        for kind in kinds:
            yield f"{stem}.{kind}", rendered(figure, kind)
