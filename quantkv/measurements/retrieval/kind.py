"""What retrieval says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quantkv.measurements.kind import Kind, in_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quantkv.studies.groups import Group


class RetrievalKind(Kind):
    """Whether a model still finds through a format what it finds exactly."""

    name = "retrieval"
    part = "task"
    figures: Mapping[str, str] = {
        "retrieval": "Share of right answers by the length of the context and the depth of what is asked for."
    }

    settings = in_file("settings:RetrievalSettings")
    open = in_file("cells:RetrievalCells")
    table = in_file("report:table")
    caption = in_file("report:caption")
    changes = in_file("report:changes")
    chart = in_file("page:chart")

    def picture(self, name: str, group: Group) -> Figure:
        from quantkv.measurements.retrieval.needle_figure import needle_figure

        return needle_figure(group)


KIND = RetrievalKind()
