"""The cells of speed on a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from quantkv.measurements.kind import Loaded, Measurement, OnCell, Step, by_label
from quantkv.measurements.speed.run import speed_block
from quantkv.measurements.speed.settings import SpeedSettings
from quantkv.measurements.timed import machine_facts, tokens_to_feed
from quantkv.rows.cell import Cell


class SpeedCells(Measurement):
    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self.asked: SpeedSettings = loaded.sweep.section("speed")

    @property
    def threads(self) -> int:
        return self.asked.threads or torch.get_num_threads()

    def facts(self, cell: Cell) -> dict[str, Any]:
        return machine_facts(self.threads)

    def protocol(self, cell: Cell) -> dict[str, Any]:
        return {"threads": self.threads}

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        head, asked = cells[0], self.asked
        speed_block(
            self.loaded.model,
            {cell.label: self.loaded.arm(cell) for cell in cells},
            context=head.context,
            ids=tokens_to_feed(self.loaded, head.context + asked.rounds * asked.block, head.seed),
            batch=head.batch,
            rounds=asked.rounds,
            block=asked.block,
            fill=asked.fill,
            threads=self.threads,
            seed=head.seed,
            on_arm=by_label(cells, on_cell),
            progress=step,
        )
