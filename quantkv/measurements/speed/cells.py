"""The cells of speed on a loaded model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quantkv.measurements.kind import OnCell, Step, by_label
from quantkv.measurements.speed.run import speed_block
from quantkv.measurements.speed.settings import SpeedSettings
from quantkv.measurements.timed import OfMachine
from quantkv.rows.cell import Cell


class SpeedCells(OfMachine):
    asked: SpeedSettings

    @property
    def threads(self) -> int:
        return self.asked.threads or torch.get_num_threads()

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        head, asked = cells[0], self.asked
        speed_block(
            self.loaded.model,
            {cell.label: self.loaded.arm(cell) for cell in cells},
            context=head.context,
            ids=self.feed(head.context + asked.rounds * asked.block, head.seed),
            batch=head.batch,
            rounds=asked.rounds,
            block=asked.block,
            fill=asked.fill,
            threads=self.threads,
            seed=head.seed,
            on_arm=by_label(cells, on_cell),
            progress=step,
        )
