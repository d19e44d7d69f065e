"""Rows of a kind with a table of its own that may stand in one: of one model and one protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantkv.drawing.style import rank
from quantkv.studies.kind import reported
from quantkv.studies.study import by_weights, requested, split
from quantkv.wording.parts import Parts, said, subject_of, title, told_of_each

Row = Mapping[str, Any]
MODEL = ("model", "revision", "dtype")


@dataclass(frozen=True)
class Group:
    """Rows of one kind in the order of a table: part (such as a task), context, format, seed.

    ``title`` is the model, with those of dtype, weights and protocol that other groups of the kind do not
    share; ``told`` are the names of these.
    """

    kind: str
    identity: Parts
    protocol: Mapping[str, Any]
    rows: tuple[Row, ...]
    told: tuple[str, ...] = ()
    title: str = ""

    @property
    def model(self) -> str:
        return self.identity["model"]

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.title.lower()).strip("-")

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(part_of(row) for row in self.rows))

    @property
    def formats(self) -> list[str]:
        names = dict.fromkeys(row["requested"]["format"] for row in self.rows)
        return sorted(names, key=rank)


def groups(rows: Iterable[Row], kind: str) -> list[Group]:
    """The rows of a kind, apart where model, dtype, weights or protocol differ; failed ones too."""
    own = [row for row in rows if row["kind"] == kind]
    found = [
        _group(kind, members, weights)
        for model in split(own, lambda row: [[requested(row, name) for name in MODEL], _shared(row)])
        for weights, members in by_weights(model).items()
    ]
    each = told_of_each([group.identity for group in found])
    return [
        replace(group, told=tuple(names), title=title(group.identity, names))
        for group, names in zip(found, each)
    ]


def part_of(row: Row) -> str:
    """The task of a retrieval row, the mode of a generation row."""
    return str((row.get("protocol") or {}).get(reported(row["kind"]).part, ""))


def _shared(row: Row) -> dict[str, Any]:
    """The protocol without what differs between the lines of one table."""
    kind = reported(row["kind"])
    own = (kind.part, *kind.varying)
    return {name: value for name, value in row["protocol"].items() if name not in own}


def _group(kind: str, rows: list[Row], fingerprint: str) -> Group:
    shared = _shared(rows[0])
    parts = subject_of(rows[0]) | {"fingerprint": fingerprint}
    parts |= {f"{kind}.{name}": said(value) for name, value in shared.items() if value is not None}
    return Group(kind, parts, shared, tuple(sorted(rows, key=_place)))


def _place(row: Row) -> tuple[Any, ...]:
    asked = row["requested"]
    return part_of(row), asked["context"], rank(asked["format"]), asked["format"], asked["seed"]
