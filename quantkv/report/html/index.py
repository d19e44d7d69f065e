"""The rows of a page in a fixed order, and which of them stand behind a record or a study.

Rows of tasks belong to no study; they stand with the studies of the same model, weights and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.rows.kinds import names
from quantkv.studies.groups import part_of
from quantkv.studies.kind import reported, tabled
from quantkv.studies.study import Row, Study, cell_of, citation, labels_of, preference, requested, studies
from quantkv.wording.parts import fingerprint_of, subject_of, titles

SAME = ("model", "revision", "dtype", "batch")
"""What rows of tasks share with the study they stand with."""
Cell = tuple[Any, ...]
"""Spec, context and seed."""


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
    labels = tuple(names[cell_of(row)[0]] for row in ordered)
    subjects = tuple(titles([subject_of(row) for row in ordered]))
    return Results(tuple(ordered), tuple(studies(ordered)), labels, subjects)


def _order(row: Row) -> tuple[Any, ...]:
    asked = [str(requested(row, name)) for name in ("model", "format", "spec")]
    return str(row["kind"]), *asked, int(requested(row, "context") or 0), preference(row)


def rows_of_records(study: Study, rows: Sequence[Row]) -> dict[Cell, list[int]]:
    """Numbers of the rows that a record of the study shows."""
    numbers = {id(row): number for number, row in enumerate(rows)}
    chosen: dict[Cell, dict[str, int]] = {}
    for row in sorted(study.rows, key=preference):
        chosen.setdefault(cell_of(row), {}).setdefault(str(row["kind"]), numbers[id(row)])
    return {cell: list(kinds.values()) for cell, kinds in chosen.items()}


def cell_of_record(record: Mapping[str, Any]) -> Cell:
    return record["spec"] or record["format"], record["context"], record["seed"]


def task_rows(study: Study, found: Results) -> list[int]:
    """Rows of tasks that were asked of the study's model; none where the study is made of others' numbers."""
    if citation(study.rows[0]):
        return []
    asked, weights = _asked(study.rows[0]), study.identity["fingerprint"]
    numbers = [at for name in tabled() for at in found.of_kind(name)]
    own = [at for at in numbers if _asked(found.rows[at]) == asked]
    return [at for at in own if not weights or fingerprint_of(found.rows[at]) in ("", weights)]


def _asked(row: Row) -> list[Any]:
    return [requested(row, name) for name in SAME]


def part(row: Row) -> str:
    """The task of a retrieval row, the mode of a generation row."""
    own = reported(row["kind"])
    return str((row.get(own.name) or {}).get(own.part) or part_of(row))
