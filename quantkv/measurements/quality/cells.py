"""The cells of quality on a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from quantkv.instruments.windows import digest
from quantkv.measurements.kind import Loaded, Measurement, OnCell, Step, by_label
from quantkv.measurements.quality.protocols import Protocol, WindowPlan
from quantkv.measurements.quality.run import quality_block
from quantkv.measurements.quality.settings import QualitySettings
from quantkv.rows.cell import Cell


class QualityCells(Measurement):
    asked: QualitySettings

    def __init__(self, loaded: Loaded, asked: QualitySettings) -> None:
        super().__init__(loaded, asked)
        self.span = max(self.asked.contexts(loaded.sweep))
        self.plan = cache(self._plan)

    def _plan(self, seed: int) -> WindowPlan:
        """The windows of a seed: their ends are the same for every context of the sweep."""
        protocol = self._protocol(self.asked.protocol.prefill[0])
        return protocol.plan(
            self.loaded.ids(self.asked.text), self.loaded.tokenizer, span=self.span, seed=seed
        )

    def _protocol(self, prefill: str) -> Protocol:
        return self.asked.protocol.with_prefill(prefill)

    def facts(self, cell: Cell) -> dict[str, Any]:
        return {"tokens": digest(self.plan(cell.seed).at(cell.context))}

    def protocol(self, cell: Cell) -> dict[str, Any]:
        bos = self._protocol(cell.prefill).bos_found(self.loaded.tokenizer)
        found = {"span": self.span, "bos": bos, "windows": len(self.plan(cell.seed).starts)}
        return super().protocol(cell) | found

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        head, plan = cells[0], self.plan(cells[0].seed)
        quality_block(
            self.loaded.model,
            plan.at(head.context),
            {cell.label: self.loaded.arm(cell) for cell in cells},
            context=head.context,
            protocol=self._protocol(head.prefill),
            on_arm=by_label(cells, on_cell),
            starts=plan.starts,
            progress=step,
            keep_tokens=True,
            seed=head.seed,
        )
