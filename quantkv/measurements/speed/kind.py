"""What speed says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkv.measurements.kind import Kind, Panels
from quantkv.measurements.speed.columns import COLUMNS
from quantkv.studies.kind import Changes, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quantkv.measurements.kind import Loaded, Measurement
    from quantkv.rows.axes import Axes
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry, Section
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

    @property
    def settings(self) -> type[Section]:
        from quantkv.measurements.speed.settings import SpeedSettings

        return SpeedSettings

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterable[Cell]:
        from quantkv.rows.axes import machine_cells

        return machine_cells(
            sweep, model, self.name, sweep.section(self.name).model_dump(exclude={"formats"})
        )

    def check(self, sweep: Axes) -> None:
        from quantkv.rows.axes import check_named_formats

        check_named_formats(sweep, self.name)

    def tokens_after(self, sweep: Axes) -> int:
        asked = sweep.section(self.name)
        return int(asked.rounds * asked.block)

    def open(self, loaded: Loaded) -> Measurement:
        from quantkv.measurements.speed.cells import SpeedCells

        return SpeedCells(loaded)


KIND = SpeedKind()
