"""What the tables of the page are made of.

A cell is the text that is shown and the value it is sorted by; None sorts last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantkv.wording.numbers import DASH, missing


@dataclass(frozen=True)
class TableCell:
    text: str
    sort: float | str | None


@dataclass(frozen=True)
class Head:
    text: str
    unit: str
    numeric: bool


@dataclass(frozen=True)
class Line:
    """One line: what filters look at, the rows it opens, and its cells; the first cell names the format.

    ``model`` says dtype and weights too where those differ.
    """

    format: str
    model: str
    context: int
    rows: tuple[int, ...]
    verdict: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Grid:
    kind: str
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]


NOTHING = TableCell(DASH, None)


def whole(value: Any) -> TableCell:
    return NOTHING if missing(value) else TableCell(str(int(value)), float(value))


def plain(value: Any) -> TableCell:
    if missing(value):
        return NOTHING
    if isinstance(value, bool):
        return TableCell("yes" if value else "no", float(value))
    return TableCell(str(value), float(value) if isinstance(value, int | float) else str(value))
