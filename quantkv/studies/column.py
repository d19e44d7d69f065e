"""A column of a table: what it says of a record or of a row's section. Cells are plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from quantkv.wording import numbers
from quantkv.wording.numbers import missing

Record = Mapping[str, Any]
Text = Callable[[Record], str]
Score = Callable[[Record], float | None]

GROUPS = ("size", "speed", "quality")
"""Columns of a group stand beside each other, in this order."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Of the table in which kinds of measurement meet, a line per format and context.

    ``value`` is the number that it shows. ``tight`` is the text where a page or a paper shows it, ``short``
    that for a narrow terminal. ``best`` says what the best of a context is, by the least ``badness`` (the
    value itself where that is not given) and all whose ``ends`` reach into those of the best: exact numbers
    have no ends. Nothing is ranked by a column without ``best``.
    """

    name: str
    header: str
    unit: str
    group: str
    value: str
    text: Text
    tight: Text | None = None
    short: Text | None = None
    best: str = ""
    badness: Score | None = None
    ends: tuple[str, ...] = ()
    of_batches: bool = False
    """Printed for batches only: of one sequence another column says the same."""

    def printed(self, record: Record) -> str:
        return (self.tight or self.text)(record)

    def narrow(self, record: Record) -> str:
        return (self.short or self.tight or self.text)(record)

    def score(self, record: Record) -> float | None:
        number: float | None = self.badness(record) if self.badness else record[self.value]
        return number


class KindColumn(NamedTuple):
    """Of the table that a kind has of its own, a line per row. ``short`` is the header for narrow places,
    ``value`` the number that a page sorts by."""

    header: str
    short: str
    text: Text
    value: str = ""


REFERENCE_MARK = "°"
RATIO = "÷ Dynamic"


def reference_mark(record: Record) -> str:
    """Set at times of the PyTorch reference engine, which are no speed claim."""
    measured = not missing(record["decode_ms_median"])
    return REFERENCE_MARK if measured and record["speed_engine"] == "reference" else ""


def led_by(kind: str, text: Text) -> Text:
    """The leading column of a kind also tells that its cell failed or was skipped."""

    def cell(record: Record) -> str:
        status = record[f"{kind}_status"]
        return text(record) if missing(status) or status == "ok" else str(status)

    return cell


def percent(name: str) -> Text:
    return lambda record: numbers.percent(record[name])


def ratio(name: str) -> Text:
    return lambda record: numbers.ratio(record[name])


def distance(name: str, target: float) -> Score:
    return lambda record: None if missing(record[name]) else abs(record[name] - target)
