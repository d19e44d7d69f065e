"""What generation says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkv.measurements.kind import Kind
from quantkv.studies.column import KindColumn
from quantkv.studies.kind import Changes, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quantkv.measurements.kind import Loaded, Measurement
    from quantkv.rows.axes import Axes
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry, Section


class GenerationKind(Kind):
    """How long texts part from those of the exact cache."""

    name = "generation"
    part = "mode"
    varying = ("temperature", "top_p")

    def table(self) -> Sequence[KindColumn]:
        from quantkv.measurements.generation.table import COLUMNS

        return COLUMNS

    def caption(self, rows: Sequence[Row]) -> str:
        from quantkv.measurements.generation.table import caption

        return caption(rows)

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.generation.changes import changes

        return changes(a, b)

    @property
    def settings(self) -> type[Section]:
        from quantkv.measurements.generation.settings import GenerationSettings

        return GenerationSettings

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        from quantkv.rows.axes import packed_cells

        asked = sweep.section(self.name)
        for mode in asked.mode:
            yield from packed_cells(sweep, model, self.name, asked.protocol(mode))

    def check(self, sweep: Axes) -> None:
        from quantkv.rows.axes import check_packed_formats

        check_packed_formats(sweep, self.name)

    def tokens_after(self, sweep: Axes) -> int:
        return int(sweep.section(self.name).tokens)

    def open(self, loaded: Loaded) -> Measurement:
        from quantkv.measurements.generation.cells import GenerationCells

        return GenerationCells(loaded)


KIND = GenerationKind()
