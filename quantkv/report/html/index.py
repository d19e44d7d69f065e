"""Where each number comes from: rows by study, format, context, seed and kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.rows.kinds import names
from quantkv.studies.study import Row, Study, labels_of, preference, requested, studies
from quantkv.wording.parts import subject_of, titles


@dataclass(frozen=True)
class Results:
    """All rows in one fixed order, the studies made of them, and of each row the label of its format and the
    title of its model: with dtype and weights where those differ."""

    rows: tuple[Row, ...]
    studies: tuple[Study, ...]
    labels: tuple[str, ...]
    subjects: tuple[str, ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds there are rows of, in their usual order."""
        found = {str(row["kind"]) for row in self.rows}
        return [kind for kind in names() if kind in found]

    def of_kind(self, kind: str) -> list[int]:
        return [number for number, row in enumerate(self.rows) if row["kind"] == kind]


def results(rows: Iterable[Row]) -> Results:
    """The same rows in any order give the same result."""
    ordered = sorted(rows, key=_order)
    names = labels_of(ordered)
    labels = tuple(names[requested(row, "spec") or requested(row, "format")] for row in ordered)
    subjects = tuple(titles([subject_of(row) for row in ordered]))
    return Results(tuple(ordered), tuple(studies(ordered)), labels, subjects)


def _order(row: Row) -> tuple[Any, ...]:
    asked = [str(requested(row, name)) for name in ("model", "format", "spec")]
    return str(row["kind"]), *asked, int(requested(row, "context") or 0), preference(row)


def rows_of_records(study: Study, rows: Sequence[Row]) -> dict[tuple[Any, ...], list[int]]:
    """Numbers of the rows that a record of the study shows, by its spec, context and seed."""
    numbers = {id(row): number for number, row in enumerate(rows)}
    chosen: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in sorted(study.rows, key=preference):
        chosen.setdefault(cell_of(row), {}).setdefault(str(row["kind"]), numbers[id(row)])
    return {cell: list(kinds.values()) for cell, kinds in chosen.items()}


def cell_of(row: Row) -> tuple[Any, ...]:
    spec = requested(row, "spec") or requested(row, "format")
    return spec, requested(row, "context"), requested(row, "seed")


def cell_of_record(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["spec"] or record["format"], record["context"], record["seed"]
