"""What memory says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quantkv.measurements.kind import Kind, Panels
from quantkv.measurements.memory.columns import COLUMNS
from quantkv.studies.kind import Changes, Row
from quantkv.wording.parts import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quantkv.measurements.kind import Loaded, Measurement
    from quantkv.rows.axes import Axes
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry, Section
    from quantkv.studies.page import OnPage


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

    def caption(self, rows: Sequence[Row]) -> str:
        counters = listed((row.get("memory") or {}).get("counter") for row in rows)
        peaks = f" (peaks by {counters})" if counters else ""
        return (
            f"Memory: bytes the cache holds, each cell in a fresh process{peaks}; ratios to a 16-bit cache."
        )

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.memory.changes import changes

        return changes(a, b)

    def panels(self) -> Panels:
        from quantkv.measurements.memory.figures import PANELS

        return PANELS

    def page(self) -> OnPage:
        from quantkv.measurements.memory.page import PAGE

        return PAGE

    @property
    def settings(self) -> type[Section]:
        from quantkv.measurements.memory.settings import MemorySettings

        return MemorySettings

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterable[Cell]:
        from quantkv.measurements.memory.settings import STEPS
        from quantkv.rows.axes import machine_cells

        asked = sweep.section(self.name).model_dump(mode="json", exclude={"formats", "workers"})
        return machine_cells(sweep, model, self.name, asked | {"steps": STEPS})

    def check(self, sweep: Axes) -> None:
        from quantkv.rows.axes import check_named_formats

        check_named_formats(sweep, self.name)

    def tokens_after(self, sweep: Axes) -> int:
        from quantkv.measurements.memory.settings import STEPS

        return STEPS

    def open(self, loaded: Loaded) -> Measurement:
        from quantkv.measurements.memory.cells import MemoryCells

        return MemoryCells(loaded)


KIND = MemoryKind()
