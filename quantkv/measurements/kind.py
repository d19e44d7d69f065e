"""What a kind of measurement says of itself: all that sweeps, reports and comparisons need to treat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from quantkv.rows import kinds
from quantkv.studies.kind import ReportedKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quantkv.studies.groups import Group
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


def kind(name: str) -> Kind:
    """The kind of a name."""
    return cast(Kind, kinds.known(name))
