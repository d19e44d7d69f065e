"""What a loaded model does on packed caches: the cells of retrieval and of generation.

Questions and prompts are made once for all formats, and before anything is measured, because their tokens
are part of every cell's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from quantkv.data import Text, load_text, tokenize
from quantkv.measurements.generation.choosing import Choice
from quantkv.measurements.generation.run import generation_block
from quantkv.measurements.retrieval.questions import Question, digest, make_prompts, make_questions
from quantkv.measurements.retrieval.run import retrieval_block
from quantkv.sweep.config import Sweep
from quantkv.sweep.grid import BEHAVIOUR, Cell
from quantkv.sweep.session import OnArm, Step

Samples = list[Question] | list[Tensor]


def behaviour_texts(sweep: Sweep) -> dict[str, Text]:
    """The text of each of the two kinds that the sweep asks for."""
    sections = ((kind, getattr(sweep, kind)) for kind in BEHAVIOUR)
    return {kind: load_text(section.text.argument) for kind, section in sections if section is not None}


class Behaviour:
    """The samples of one model's cells, and how the cells are measured."""

    def __init__(self, tokenizer: Any, sweep: Sweep) -> None:
        self.tokenizer, self.sweep = tokenizer, sweep
        self.texts = behaviour_texts(sweep)
        self._ids = cache(lambda kind: tokenize(self.texts[kind], tokenizer))
        self._samples: dict[str, Samples] = {}

    def digest(self, cell: Cell) -> str:
        """SHA-256 over the tokens of the cell's questions or prompts."""
        if cell.kind == "retrieval":
            return digest(self._questions(cell))
        return hashlib.sha256(torch.stack(self._prompts(cell)).numpy().tobytes()).hexdigest()

    def protocol(self, cell: Cell) -> dict[str, Any]:
        """What the row says of the text beside what was asked."""
        return {"text_sha256": self.texts[cell.kind].sha256}

    def measure(
        self, model: Any, cells: tuple[Cell, ...], arms: Mapping[str, Any], on_arm: OnArm, step: Step
    ) -> None:
        head, by_label = cells[0], {cell.label: cell for cell in cells}
        shared: dict[str, Any] = {
            "on_arm": lambda label, result: on_arm(by_label[label], result),
            "progress": step,
        }
        if head.kind == "retrieval":
            questions, tail = self._questions(head), head.protocol["tail"]
            retrieval_block(model, questions, arms, tail=tail, seed=head.seed, **shared)
        else:
            tokens, choice = head.protocol["tokens"], _choice(head.protocol, head.seed)
            generation_block(model, self._prompts(head), arms, tokens=tokens, choice=choice, **shared)

    def _questions(self, cell: Cell) -> list[Question]:
        asked = cell.protocol
        name = f"{asked['task']}/{cell.context}/{cell.seed}"
        if name not in self._samples:
            options = {setting: asked[setting] for setting in ("depths", "samples", "tail")}
            self._samples[name] = make_questions(
                asked["task"],
                self.tokenizer,
                self._ids("retrieval"),
                context=cell.context,
                seed=cell.seed,
                **options,
            )
        return self._samples[name]  # type: ignore[return-value]

    def _prompts(self, cell: Cell) -> list[Tensor]:
        name = f"{cell.context}/{cell.seed}"
        if name not in self._samples:
            self._samples[name] = make_prompts(
                self._ids("generation"),
                self.tokenizer,
                context=cell.context,
                span=max(self.sweep.contexts),
                tokens=cell.protocol["tokens"],
                prompts=cell.protocol["prompts"],
                seed=cell.seed,
            )
        return self._samples[name]  # type: ignore[return-value]


def _choice(protocol: Mapping[str, Any], seed: int) -> Choice:
    settings = {name: protocol[name] for name in ("mode", "temperature", "top_p") if name in protocol}
    return Choice(**settings, seed=seed)
