"""The cells of generation on a loaded model: prompts are made once for all formats, before anything is
measured, because their tokens are part of every cell's key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor

from quantkv.instruments.digest import digest
from quantkv.measurements.generation.choosing import Choice
from quantkv.measurements.generation.prompts import make_prompts
from quantkv.measurements.generation.run import generation_block
from quantkv.measurements.generation.settings import GenerationSettings
from quantkv.measurements.kind import Loaded, Measurement, OnCell, Step, by_label
from quantkv.rows.cell import Cell


class GenerationCells(Measurement):
    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self.asked: GenerationSettings = loaded.sweep.section("generation")
        self.prompts = cache(self._prompts)

    def _prompts(self, context: int, seed: int) -> list[Tensor]:
        return make_prompts(
            self.loaded.ids(self.asked.text),
            self.loaded.tokenizer,
            context=context,
            span=max(self.loaded.sweep.contexts),
            tokens=self.asked.tokens,
            prompts=self.asked.prompts,
            seed=seed,
        )

    def facts(self, cell: Cell) -> dict[str, Any]:
        return {"tokens": digest(self.prompts(cell.context, cell.seed))}

    def protocol(self, cell: Cell) -> dict[str, Any]:
        return {"text_sha256": self.loaded.text(self.asked.text).sha256}

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        head, asked = cells[0], self.asked
        choice = Choice(mode=head.part, temperature=asked.temperature, top_p=asked.top_p, seed=head.seed)
        generation_block(
            self.loaded.model,
            self.prompts(head.context, head.seed),
            {cell.label: self.loaded.arm(cell) for cell in cells},
            tokens=asked.tokens,
            choice=choice,
            on_arm=by_label(cells, on_cell),
            progress=step,
        )
