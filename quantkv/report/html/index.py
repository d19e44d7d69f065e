"""Where each number comes from: rows by study, format, context, seed and kind, and a name for every study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.evaluation.rows import KINDS
from quantkv.report.numbers import missing
from quantkv.report.summary import Row, Study, labels_of, preference, protocol_of, requested, studies


@dataclass(frozen=True)
class Results:
    """All rows in one fixed order, the studies made of them, and the label of each row's format."""

    rows: tuple[Row, ...]
    studies: tuple[Study, ...]
    labels: tuple[str, ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds there are rows of, in their usual order."""
        found = {str(row["kind"]) for row in self.rows}
        return [kind for kind in KINDS if kind in found] + sorted(found - set(KINDS))

    def of_kind(self, kind: str) -> list[int]:
        return [number for number, row in enumerate(self.rows) if row["kind"] == kind]


def results(rows: Iterable[Row]) -> Results:
    """The same rows in any order give the same result."""
    ordered = sorted(rows, key=_order)
    names = labels_of(ordered)
    labels = tuple(names[requested(row, "spec") or requested(row, "format")] for row in ordered)
    return Results(tuple(ordered), tuple(studies(ordered)), labels)


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


def study_names(found: Sequence[Study]) -> list[str]:
    """The model, and of dtype, batch, text and prefill what differs; numbered where nothing of it does."""
    parts = [_parts(study) for study in found]
    telling = [index == 0 or len(set(values)) > 1 for index, values in enumerate(zip(*parts))]
    names = [" · ".join(part for part, told in zip(own, telling) if told and part) for own in parts]
    return [
        name if names.count(name) == 1 else f"{name} · {names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _parts(study: Study) -> tuple[str, ...]:
    dtype = next((str(requested(row, "dtype")) for row in study.rows if requested(row, "dtype")), "")
    protocols = [protocol_of(row) for row in study.rows if row["kind"] == "quality"]
    said = next((protocol for protocol in protocols if protocol), {})
    prefill = f"prefill {said['prefill']}" if said.get("prefill") else ""
    return study.model, dtype, f"batch {study.batch}", str(said.get("text") or ""), prefill


def number(value: Any) -> float | None:
    """As JSON holds it: null where nothing was measured."""
    return None if missing(value) else float(value)
