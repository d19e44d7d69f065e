"""What a kind of measurement says of itself: all that sweeps, reports and comparisons need to treat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from quantkv.rows import kinds
from quantkv.studies.kind import ReportedKind, studied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quantkv.studies.groups import Group
    from quantkv.studies.page import OnPage, RowOnPage
    from quantkv.studies.panel import Panel

Panels = Mapping[str, "Panel"]


class Kind(ReportedKind):
    """A kind of measurement. Its one object lies in its folder's `kind.py`; what is heavy is imported inside
    methods."""

    figures: Mapping[str, str] = {}
    """What each of its figures shows, by name."""

    def panels(self) -> Panels:
        """How its figures are drawn where it meets others in a study."""
        return {}

    def picture(self, name: str, group: Group) -> Figure:
        """One of its figures, drawn of a table of its own."""
        raise NotImplementedError

    measured: str = "measured"
    """What was done to a format, for sentences."""

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
