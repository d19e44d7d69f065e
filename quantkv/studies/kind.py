"""What tables, pages and comparisons know of a kind of measurement, beside what every reader of rows does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quantkv.rows import kinds
from quantkv.rows.kinds import RowKind
from quantkv.studies.column import Column, KindColumn
from quantkv.studies.headings import ends_of, heading, number_text
from quantkv.wording.parts import said

if TYPE_CHECKING:
    from quantkv.studies.changes import Change

Row = Mapping[str, Any]
Changes = Iterator["Change | None"]


class ReportedKind(RowKind):
    """A kind has a table of its own, or columns of the one in which kinds meet, a line per format."""

    varying: tuple[str, ...] = ()
    """Settings of its protocol, beside `part`, that may differ between lines of one table."""
    columns: tuple[Column, ...] = ()
    """Its columns of the table in which kinds meet."""
    timed: bool = False
    """Whether its numbers are times: these compare on one machine, with as many threads, only."""

    def table(self) -> Sequence[KindColumn]:
        """The columns of a table of its own: its numbers, where a kind does not say more of them."""
        found = []
        for name, ends in self._numbers().items():
            words, unit, _ = heading(name)
            header = f"{words} ({unit})" if unit else words
            found.append(KindColumn(header, words, partial(number_text, name, ends=ends), name))
        return found

    def caption(self, rows: Sequence[Row]) -> str:
        """How the numbers of these rows of one protocol were made: its settings."""
        settings = {name: value for name, value in rows[0]["protocol"].items() if name != self.part}
        return ", ".join(f"{name} {said(value)}" for name, value in settings.items())

    def remark(self, study: Any) -> str:
        """What must be said of its numbers in a study, where something must."""
        return ""

    def changes(self, a: Row, b: Row) -> Changes:
        """What `compare` says of two rows with numbers: these, not judged, where a kind does not say more."""
        from quantkv.studies.changes import single

        for name in self._numbers():
            _, unit, scale = heading(name)
            given = [row[self.name].get(name) for row in (a, b)]
            yield single(name, unit, *(None if value is None else value * scale for value in given))

    def _numbers(self) -> dict[str, Sequence[str]]:
        """Its numbers, each with the names of the ends of its interval."""
        ends = ends_of(self.metrics)
        hidden = {name for pair in ends.values() for name in pair}
        return {name: ends.get(name, ()) for name in self.metrics if name not in hidden}


def reported(name: str) -> ReportedKind:
    """The kind of a name."""
    return cast(ReportedKind, kinds.known(name))


def studied() -> tuple[str, ...]:
    """The kinds that meet in one table."""
    return tuple(name for name in kinds.names() if reported(name).columns)


def tabled() -> tuple[str, ...]:
    """The kinds with a table of their own."""
    return tuple(name for name in kinds.names() if not reported(name).columns)
