"""What retrieval says of itself."""

from quantkv.measurements.kind import Kind


class RetrievalKind(Kind):
    """Whether a model still finds through a format what it finds exactly."""

    name = "retrieval"
    part = "task"


KIND = RetrievalKind()
