"""What generation says of itself."""

from __future__ import annotations

from quantkv.measurements.kind import Kind, in_file


class GenerationKind(Kind):
    """How long texts part from those of the exact cache."""

    name = "generation"
    part = "mode"
    varying = ("temperature", "top_p")

    settings = in_file("settings:GenerationSettings")
    open = in_file("cells:GenerationCells")
    table = in_file("report:table")
    caption = in_file("report:caption")
    changes = in_file("report:changes")


KIND = GenerationKind()
