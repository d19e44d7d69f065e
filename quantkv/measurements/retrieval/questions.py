"""The questions of one task at one context: the same for every format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quantkv.data import bos_id
from quantkv.errors import QuantKVError
from quantkv.instruments.windows import check_counts
from quantkv.measurements.retrieval.tasks import TAIL, Haystack, Sample, task_named

DEPTHS = (0.1, 0.5, 0.9)
SAMPLES = 8


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


def digest(questions: Iterable[Question]) -> str:
    """SHA-256 over every token of the questions."""
    found = hashlib.sha256()
    for question in questions:
        for part in (question.sample.context, question.sample.question, question.sample.answer):
            found.update(part.numpy().tobytes() + b"/")
    return found.hexdigest()
