"""Rows of retrieval or generation that may stand in one table: of one model and one protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quantkv.report.style import rank

Row = Mapping[str, Any]
KINDS = ("retrieval", "generation")
PARTS = {"retrieval": "task", "generation": "mode"}
OF_A_MODE = ("temperature", "top_p")


@dataclass(frozen=True)
class Group:
    """Rows of one kind in the order of a table: task or mode, context, format, seed."""

    kind: str
    model: str
    protocol: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(part_of(row) for row in self.rows))

    @property
    def formats(self) -> list[str]:
        names = dict.fromkeys(row["requested"]["format"] for row in self.rows)
        return sorted(names, key=rank)


def groups(rows: Iterable[Row], kind: str) -> list[Group]:
    """The rows of a kind, apart where model, dtype or protocol differ; failed ones too."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == kind:
            model = [row["requested"].get(name) for name in ("model", "revision", "dtype")]
            found.setdefault(json.dumps([model, _shared(row)], sort_keys=True), []).append(row)
    return [_group(kind, found[name]) for name in sorted(found)]


def part_of(row: Row) -> str:
    """The task of a retrieval row, the mode of a generation row."""
    return str(row["protocol"].get(PARTS[row["kind"]], ""))


def _shared(row: Row) -> dict[str, Any]:
    """The protocol without what differs between the tasks or modes of one table."""
    own = (PARTS[row["kind"]], *OF_A_MODE)
    return {name: value for name, value in row["protocol"].items() if name not in own}


def _group(kind: str, rows: list[Row]) -> Group:
    ordered = sorted(rows, key=_place)
    return Group(kind, str(rows[0]["requested"]["model"]), _shared(rows[0]), tuple(ordered))


def _place(row: Row) -> tuple[Any, ...]:
    asked = row["requested"]
    return part_of(row), asked["context"], rank(asked["format"]), asked["format"], asked["seed"]
