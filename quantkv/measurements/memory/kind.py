"""What memory says of itself."""

from __future__ import annotations

from collections.abc import Mapping

from quantkv.measurements.kind import Kind, in_file
from quantkv.measurements.memory.columns import COLUMNS


class MemoryKind(Kind):
    """Bytes held, and peaks of prefill and decoding."""

    name = "memory"
    version = 2
    of_machine = True
    alone = True
    metrics = (
        "held_bytes", "used_bytes", "predicted_bytes", "prefill_peak_bytes", "decode_peak_bytes",
        "weights_bytes", "baseline_16bit_bytes", "ratio_to_16bit",
    )  # fmt: skip
    columns = COLUMNS
    measured = "weighed"
    published = (
        "held_bytes", "prefill_peak_bytes", "decode_peak_bytes", "ratio_to_16bit",
    )  # fmt: skip
    figures: Mapping[str, str] = {"memory": "Memory the cache holds against context."}

    settings = in_file("settings:MemorySettings")
    open = in_file("cells:MemoryCells")
    caption = in_file("report:caption")
    changes = in_file("report:changes")
    panels = in_file("figures:PANELS")
    page = in_file("page:PAGE")


KIND = MemoryKind()
