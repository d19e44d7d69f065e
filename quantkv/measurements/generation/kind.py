"""What generation says of itself."""

from collections.abc import Sequence

from quantkv.measurements.kind import Kind
from quantkv.studies.column import KindColumn
from quantkv.studies.kind import Changes, Row


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


KIND = GenerationKind()
