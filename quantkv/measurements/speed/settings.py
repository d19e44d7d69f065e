"""The section `speed` of a sweep file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from quantkv.rows.axes import Axes, MachineSettings
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry, OneOrMore, Positive


class SpeedSettings(MachineSettings):
    kind = "speed"
    baseline: Literal["dynamic"] = "dynamic"
    rounds: Positive = 10
    block: Annotated[int, Field(strict=True, ge=2)] = 8
    fill: Literal["prefill", "synthetic"] = "prefill"
    threads: Positive | None = None
    formats: OneOrMore[str] | None = None

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        return self.machine_cells(sweep, model, self.model_dump(exclude={"formats"}))

    def tokens_after(self, sweep: Axes) -> int:
        return self.rounds * self.block
