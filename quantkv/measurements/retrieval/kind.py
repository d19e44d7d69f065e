"""What retrieval says of itself."""

from collections.abc import Sequence

from quantkv.measurements.kind import Kind
from quantkv.studies.column import KindColumn
from quantkv.studies.kind import Changes, Row


class RetrievalKind(Kind):
    """Whether a model still finds through a format what it finds exactly."""

    name = "retrieval"
    part = "task"

    def table(self) -> Sequence[KindColumn]:
        from quantkv.measurements.retrieval.table import COLUMNS

        return COLUMNS

    def caption(self, rows: Sequence[Row]) -> str:
        from quantkv.measurements.retrieval.table import caption

        return caption(rows)

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.retrieval.changes import changes

        return changes(a, b)


KIND = RetrievalKind()
