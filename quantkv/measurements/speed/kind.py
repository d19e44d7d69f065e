"""What speed says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkv.measurements.kind import Kind, Panels
from quantkv.measurements.speed.columns import COLUMNS
from quantkv.studies.kind import Changes, Row

if TYPE_CHECKING:
    from quantkv.studies.page import OnPage


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

    def caption(self, rows: Sequence[Row]) -> str:
        from quantkv.measurements.speed.caption import caption

        return caption(rows)

    def remark(self, study: Any) -> str:
        from quantkv.measurements.speed.drift import drifted

        return drifted(study)

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.speed.changes import changes

        return changes(a, b)

    def panels(self) -> Panels:
        from quantkv.measurements.speed.figures import PANELS

        return PANELS

    def page(self) -> OnPage:
        from quantkv.measurements.speed.page import PAGE

        return PAGE


KIND = SpeedKind()
