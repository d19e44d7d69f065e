"""What speed says of itself."""

from __future__ import annotations

from collections.abc import Mapping

from quantkv.measurements.kind import Kind, in_file
from quantkv.measurements.speed.columns import COLUMNS


class SpeedKind(Kind):
    """Times of prefill and decoding, beside `DynamicCache`."""

    name = "speed"
    of_machine = True
    together = True
    timed = True
    metrics = (
        "prefill_tokens_per_s", "time_to_first_token_ms", "decode_ms_median", "decode_ms_p10",
        "decode_ms_p90", "decode_tokens_per_s", "ratio_to_baseline", "ratio_low", "ratio_high",
        "baseline_ms_median", "prefill_ratio_to_baseline", "bandwidth_gb_s", "bandwidth_drift",
        "top1_agreement_64", "steps",
    )  # fmt: skip
    columns = COLUMNS
    measured = "timed"
    published = (
        "prefill_tokens_per_s", "time_to_first_token_ms", "decode_ms_median", "decode_tokens_per_s",
        "ratio_to_baseline",
    )  # fmt: skip
    figures: Mapping[str, str] = {
        "decode_ms": "Decode time against context; bars from the 10th to the 90th percentile.",
        "decode_tps": "Decode speed against context; bars from the 10th to the 90th percentile.",
        "crossover": "The context from which on a format decodes faster than DynamicCache; the gain in time "
        "is interpolated linearly between two measured contexts, never extrapolated.",
    }

    settings = in_file("settings:SpeedSettings")
    open = in_file("cells:SpeedCells")
    caption = in_file("report:caption")
    remark = in_file("drift:drifted")
    changes = in_file("report:changes")
    panels = in_file("figures:PANELS")
    page = in_file("page:PAGE")


KIND = SpeedKind()
