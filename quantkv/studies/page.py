"""What figures and the page of a report draw and say of a kind of measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantkv.drawing.lines import Curve
from quantkv.studies.column import Record
from quantkv.studies.curves import per_context
from quantkv.studies.study import Row, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from quantkv.drawing.legend import Legend
    from quantkv.drawing.style import Style

Draw = Callable[["Axes", "Study", dict[str, "Style"], "Legend"], None]
RowOnPage = tuple[int, str, Row]
"""Its number on the page, the label of its format, and the row."""
Guides = list[dict[str, Any]]


@dataclass(frozen=True)
class Sentence:
    """What matters most of it comes ``first``, for readers who only skim."""

    first: str
    rest: str

    def __str__(self) -> str:
        return self.first + self.rest


@dataclass(frozen=True)
class Panel:
    """A figure of a study: one axes, and nothing of the legend inside. It is drawn from one of these
    ``numbers`` of a summary, or from what ``holds`` looks for.

    ``title`` stands above it where a figure has several; ``inches`` is its height where its rows decide that.
    ``interval`` is the number of a summary that says whether there are intervals, and ``bars`` what a caption
    then says of them.
    """

    draw: Draw
    numbers: tuple[str, ...] = ()
    title: str = ""
    holds: Callable[[Study], bool] | None = None
    inches: Callable[[Study], float] | None = None
    interval: str = ""
    bars: str = ", with intervals."

    def can_draw(self, study: Study) -> bool:
        """Whether the study holds at least one number for it."""
        if self.holds is not None:
            return self.holds(study)
        return any(study.frame[name].notna().any() for name in self.numbers)


@dataclass(frozen=True)
class Chart:
    """One number of a kind against context; ``scale`` is log or linear. ``guides`` are dotted lines of no
    format, ``bounds`` named heights."""

    name: str
    title: str
    axis: str
    scale: str
    curves: Callable[[Study], list[Curve]]
    note: Callable[[Study], str]
    guides: Callable[[Study], Guides] = lambda study: []
    bounds: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class OnPage:
    """``lead`` is said first of the formats of a study at one context, given their worst verdicts, and
    ``sentence`` of each; ``limits`` are what its rows cannot say."""

    lead: Callable[[Sequence[Record], Mapping[str, str]], Sequence[str]] = lambda here, worst: ()
    sentence: Callable[[Record], Sentence | None] = lambda record: None
    charts: Sequence[Chart] = ()
    limits: Callable[[Study], Sequence[str]] = lambda study: ()


def guide(study: Study, name: str, scale: float = 1.0) -> Guides:
    """A line along a number that all formats of a context share."""
    contexts, values = per_context(study, name, scale)
    points = [{"x": context, "y": value} for context, value in zip(contexts, values) if value > 0]
    return [{"points": points}] if points else []


def against(what: str, contexts: Iterable[int]) -> str:
    """Against context, or at the only one: such a plot has a place for each format instead."""
    found = set(contexts)
    return f"{what} at {found.pop()} tokens" if len(found) == 1 else f"{what} against context"


def measured(study: Study, kind: str) -> list[Row]:
    """The rows of a kind with numbers."""
    return [row for row in study.rows if row["kind"] == kind and row.get("status") == "ok"]


def and_names(records: Sequence[Record]) -> str:
    *before, last = [record["label"] for record in records]
    return f"{', '.join(before)} and {last}" if before else str(last)
