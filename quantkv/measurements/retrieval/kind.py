"""What retrieval says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkv.measurements.kind import Kind
from quantkv.studies.column import KindColumn
from quantkv.studies.kind import Changes, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quantkv.measurements.kind import Loaded, Measurement
    from quantkv.rows.axes import Axes
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry, Section
    from quantkv.studies.page import RowOnPage


class RetrievalKind(Kind):
    """Whether a model still finds through a format what it finds exactly."""

    name = "retrieval"
    part = "task"
    figures: Mapping[str, str] = {
        "retrieval": "Share of right answers by the length of the context and the depth of what is asked for."
    }

    def table(self) -> Sequence[KindColumn]:
        from quantkv.measurements.retrieval.table import COLUMNS

        return COLUMNS

    def caption(self, rows: Sequence[Row]) -> str:
        from quantkv.measurements.retrieval.table import caption

        return caption(rows)

    def chart(self, part: str, rows: Sequence[RowOnPage]) -> dict[str, Any] | None:
        from quantkv.measurements.retrieval.page import chart

        return chart(part, rows)

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.retrieval.changes import changes

        return changes(a, b)

    def picture(self, name: str, group: Any) -> Any:
        from quantkv.measurements.retrieval.needle_figure import needle_figure

        return needle_figure(group)

    @property
    def settings(self) -> type[Section]:
        from quantkv.measurements.retrieval.settings import RetrievalSettings

        return RetrievalSettings

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        from quantkv.rows.axes import packed_cells

        asked = sweep.section(self.name)
        protocol = asked.model_dump(mode="json", include={"samples", "depths", "tail"})
        for task in asked.tasks:
            said = {"text": asked.text.label, "task": task}
            yield from packed_cells(sweep, model, self.name, said | protocol)

    def check(self, sweep: Axes) -> None:
        from quantkv.measurements.retrieval.tasks import check_room
        from quantkv.rows.axes import check_packed_formats

        check_room(min(sweep.contexts), sweep.section(self.name).tail)
        check_packed_formats(sweep, self.name)

    def open(self, loaded: Loaded) -> Measurement:
        from quantkv.measurements.retrieval.cells import RetrievalCells

        return RetrievalCells(loaded)


KIND = RetrievalKind()
