"""The questions of one task, or the prompts, at one context: the same for every format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quantkv.data import bos_id
from quantkv.errors import QuantKVError
from quantkv.instruments.windows import check_counts, make_windows
from quantkv.measurements.retrieval.tasks import TAIL, Haystack, Sample, task_named

DEPTHS = (0.1, 0.5, 0.9)
SAMPLES = 8
PROMPTS = 4


@dataclass(frozen=True, slots=True)
class Question:
    """A sample of a task, and the depth it was made for."""

    task: str
    depth: float
    sample: Sample


def make_questions(
    task: str,
    tokenizer: Any,
    filler: Tensor,
    *,
    context: int,
    depths: Sequence[float] = DEPTHS,
    samples: int = SAMPLES,
    tail: int = TAIL,
    seed: int = 0,
) -> list[Question]:
    """`samples` questions at each depth, about contexts of exactly `context` tokens, a BOS included."""
    maker = task_named(task)
    check_counts(samples=samples)
    check_counts(0, tail=tail)
    if not depths:
        raise QuantKVError("depths must be a list of numbers from 0 to 1, not empty")
    haystack = Haystack(tokenizer, filler, context, tail=tail, bos_id=bos_id(tokenizer))
    return [
        Question(task, depth, maker.make(haystack, depth, f"{seed}/{task}/{context}/{depth}/{index}"))
        for depth in depths
        for index in range(samples)
    ]


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


def digest(questions: Iterable[Question]) -> str:
    """SHA-256 over every token of the questions."""
    found = hashlib.sha256()
    for question in questions:
        for part in (question.sample.context, question.sample.question, question.sample.answer):
            found.update(part.numpy().tobytes() + b"/")
    return found.hexdigest()
