"""What quality says of itself."""

from quantkv.measurements.kind import Kind


class QualityKind(Kind):
    """How far a format's predictions are from those of the exact cache."""

    name = "quality"
    version = 2
    by_engine = False
    arrays = "tokens_scored"


KIND = QualityKind()
