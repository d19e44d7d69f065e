"""The section `memory` of a sweep file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from quantkv.rows.axes import Axes, MachineSettings
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry, OneOrMore, Positive

STEPS = 32
"""Tokens decoded after a prompt."""


class MemorySettings(MachineSettings):
    """``workers`` cells run side by side, each in its own process with its share of the threads."""

    kind = "memory"
    isolate: Literal["process"] = "process"
    phases: OneOrMore[Literal["prefill", "decode"]] = ("prefill", "decode")
    workers: Positive = 1
    formats: OneOrMore[str] | None = None

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        asked = self.model_dump(mode="json", exclude={"formats", "workers"})
        return self.machine_cells(sweep, model, asked | {"steps": STEPS})

    def tokens_after(self, sweep: Axes) -> int:
        return STEPS
