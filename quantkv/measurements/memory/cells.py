"""The cells of memory, each in a process that loads a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quantkv.measurements.kind import Loaded, Measurement, OnCell, Step
from quantkv.measurements.memory.run import memory_cell
from quantkv.measurements.memory.settings import STEPS, MemorySettings
from quantkv.measurements.memory.workers import measure_memory
from quantkv.measurements.timed import machine_facts, tokens_to_feed
from quantkv.rows.cell import Cell


class MemoryCells(Measurement):
    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self.asked: MemorySettings = loaded.sweep.section("memory")

    @property
    def threads(self) -> int:
        """Those of torch, shared out among the workers."""
        return max(1, torch.get_num_threads() // self.asked.workers)

    def facts(self, cell: Cell) -> dict[str, Any]:
        return machine_facts(self.threads)

    def protocol(self, cell: Cell) -> dict[str, Any]:
        return {"threads": self.threads}

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        """The model goes first, so that there is room."""
        self.loaded.release()
        measure_memory(cells, self._one, on_cell, self.asked.workers)

    def _one(self, cell: Cell) -> Mapping[str, Any]:
        """The worker picks the attention: the fused one for formats, the stock one for the baseline."""
        entry = self.loaded.entry
        return memory_cell(
            {"name": entry.location, **entry.options, "attn": None},
            self.loaded.arm(cell),
            context=cell.context,
            batch=cell.batch,
            steps=STEPS,
            ids=tokens_to_feed(self.loaded, cell.batch * (cell.context + STEPS), cell.seed),
            timeout=self.loaded.cell_timeout,
            phases=self.asked.phases,
            threads=self.threads,
        )
