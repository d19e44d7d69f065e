"""The cells of generation on a loaded model: prompts are made once for all formats, before anything is
measured, because their tokens are part of every cell's key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor

from quantkv.data import bos_id
from quantkv.instruments.windows import check_counts, digest, make_windows
from quantkv.measurements.generation.choosing import Choice
from quantkv.measurements.generation.run import generation_block
from quantkv.measurements.generation.settings import PROMPTS, GenerationSettings
from quantkv.measurements.kind import Loaded, Measurement, OnCell, Step, by_label
from quantkv.rows.cell import Cell


class GenerationCells(Measurement):
    asked: GenerationSettings

    def __init__(self, loaded: Loaded, asked: GenerationSettings) -> None:
        super().__init__(loaded, asked)
        options = {"tokens": asked.tokens, "prompts": asked.prompts, "span": max(loaded.sweep.contexts)}
        self.prompts = cache(
            lambda context, seed: make_prompts(
                loaded.ids(asked.text), loaded.tokenizer, context=context, seed=seed, **options
            )
        )

    def facts(self, cell: Cell) -> dict[str, Any]:
        return {"tokens": digest(self.prompts(cell.context, cell.seed))}

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


def make_prompts(
    ids: Tensor,
    tokenizer: Any,
    *,
    context: int,
    span: int,
    tokens: int,
    prompts: int = PROMPTS,
    seed: int = 0,
) -> list[Tensor]:
    """Prompts `[context]` from a text `[T]`, spread over it, that end at the same places for every context up
    to `span`; room for `tokens` tokens is left between them."""
    check_counts(tokens=tokens, prompts=prompts)
    places = make_windows(ids, span=span, score=tokens, windows=prompts, seed=seed, bos_id=bos_id(tokenizer))
    return [window[:context] for window in places.at(context)]
