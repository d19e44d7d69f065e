"""The cells of retrieval on a loaded model: questions are made once for all formats, before anything is
measured, because their tokens are part of every cell's key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from quantkv.measurements.kind import Loaded, Measurement, OnCell, Step, by_label
from quantkv.measurements.retrieval.run import retrieval_block
from quantkv.measurements.retrieval.settings import RetrievalSettings
from quantkv.measurements.retrieval.tasks import digest, make_questions
from quantkv.rows.cell import Cell


class RetrievalCells(Measurement):
    asked: RetrievalSettings

    def __init__(self, loaded: Loaded, asked: RetrievalSettings) -> None:
        super().__init__(loaded, asked)
        options: dict[str, Any] = {"depths": asked.depths, "samples": asked.samples, "tail": asked.tail}
        self.questions = cache(
            lambda task, context, seed: make_questions(
                task, loaded.tokenizer, loaded.ids(asked.text), context=context, seed=seed, **options
            )
        )

    def facts(self, cell: Cell) -> dict[str, Any]:
        return {"tokens": digest(self.questions(cell.part, cell.context, cell.seed))}

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        head = cells[0]
        retrieval_block(
            self.loaded.model,
            self.questions(head.part, head.context, head.seed),
            {cell.label: self.loaded.arm(cell) for cell in cells},
            tail=self.asked.tail,
            seed=head.seed,
            on_arm=by_label(cells, on_cell),
            progress=step,
        )
