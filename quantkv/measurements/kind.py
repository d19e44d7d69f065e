"""What a kind of measurement says of itself: all that sweeps, reports and comparisons need to treat it.

A kind is one object, in its folder's `kind.py`. It is light: its heavy parts lie in other files of the
folder, and are loaded when they are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from quantkv.rows import kinds
from quantkv.studies.kind import ReportedKind, studied

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from quantkv import data
    from quantkv.arms.arm import Format
    from quantkv.rows.axes import Axes, KindSettings
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry, TextSettings
    from quantkv.studies.groups import Group
    from quantkv.studies.page import OnPage, Panel, RowOnPage

Result = Mapping[str, Any]
OnCell = Callable[["Cell", Result], None]
Step = Callable[[str, int, int], None]


class Loaded(Protocol):
    """A loaded model in a sweep, as measurements see it."""

    model: Any
    config: Any
    tokenizer: Any
    entry: ModelEntry

    @property
    def sweep(self) -> Axes: ...

    def text(self, asked: TextSettings) -> data.Text:
        """The text, read once."""

    def ids(self, asked: TextSettings) -> Tensor:
        """Its tokens `[T]`, made once; QuantKVError where the model came without a tokenizer."""

    def arm(self, cell: Cell) -> Format:
        """What runs for a cell."""

    @property
    def cell_timeout(self) -> float | None:
        """Seconds that a cell may take; only kinds that are ``alone`` need to see to that."""

    def release(self) -> None:
        """Drop the model, to make room for processes that load their own."""


class Measurement(ABC):
    """A kind's cells on one loaded model, `asked` for by its section of the sweep. What they share is made
    once and kept here."""

    def __init__(self, loaded: Loaded, asked: Any) -> None:
        self.loaded, self.asked = loaded, asked

    @abstractmethod
    def facts(self, cell: Cell) -> dict[str, Any]:
        """What determines a cell's number beside what was asked, the weights and the versions: `tokens`, the
        digest of those it reads, or the `threads` and the `machine` it runs on. QuantKVError where the text
        or the context does not do, which costs the cell."""

    def protocol(self, cell: Cell) -> dict[str, Any]:
        """What its row says of the protocol beside what was asked: the hash of a `text` in its settings."""
        text = getattr(self.asked, "text", None)
        return {} if text is None else {"text_sha256": self.loaded.text(text).sha256}

    @abstractmethod
    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        """Measure cells of one block; ``on_cell`` gets each result, as ``success`` and ``failure`` of
        ``quantkv.arms.arm`` make them, at once. ``step`` is told what is done: an arm's name or another
        word, how far, of how much."""


class _InFile:
    def __init__(self, file: str, name: str) -> None:
        self.file, self.name = file, name

    def __get__(self, kind: Kind | None, owner: type[Kind]) -> Any:
        """The part itself where a kind is asked for it: classes are made without loading any."""
        if kind is None:
            return self
        folder = owner.__module__.rpartition(".")[0]
        return getattr(import_module(f"{folder}.{self.file}"), self.name)


def in_file(place: str) -> Any:
    """A part of a kind by its place in the kind's folder, `file:name`, loaded when it is asked for."""
    return _InFile(*place.split(":"))


class Kind(ReportedKind, ABC):
    """A kind of measurement; `name` is that of its section in a sweep file and in rows."""

    @property
    @abstractmethod
    def settings(self) -> type[KindSettings]:
        """Its section of a sweep file, which says what its cells are."""

    @abstractmethod
    def open(self, loaded: Loaded, asked: Any) -> Measurement:
        """Its cells on one loaded model, asked for by its section of the sweep."""

    figures: Mapping[str, str] = {}
    """What each of its figures shows, by name."""

    panels: Mapping[str, Panel] = {}
    """How its figures are drawn where it meets others in a study."""

    def picture(self, name: str, group: Group) -> Figure:
        """One of its figures, drawn of a table of its own."""
        raise NotImplementedError

    measured: str = "measured"
    """What was done to a format, for sentences."""

    @property
    def page(self) -> OnPage:
        """What a page says and draws of it where it meets others in a study."""
        from quantkv.studies.page import OnPage

        return OnPage()

    def chart(self, part: str, rows: Sequence[RowOnPage]) -> dict[str, Any] | None:
        """What a page draws of the rows of one part, such as a task, of a table of its own."""
        return None


def on_a_page() -> list[Kind]:
    """The kinds that meet in a study, in the order in which a page tells of them: times last."""
    return sorted(map(kind, studied()), key=lambda own: own.timed)


def kind(name: str) -> Kind:
    """The kind of a name."""
    return cast(Kind, kinds.known(name))


def by_label(cells: Iterable[Cell], on_cell: OnCell) -> Callable[[str, Result], None]:
    """``on_cell`` for those who know cells by their labels."""
    found = {cell.label: cell for cell in cells}
    return lambda label, result: on_cell(found[label], result)
