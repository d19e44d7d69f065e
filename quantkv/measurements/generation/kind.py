"""What generation says of itself."""

from quantkv.measurements.kind import Kind


class GenerationKind(Kind):
    """How long texts part from those of the exact cache."""

    name = "generation"
    part = "mode"


KIND = GenerationKind()
