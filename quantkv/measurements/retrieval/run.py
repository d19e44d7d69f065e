"""Retrieval through packed caches: can a model still find, through a format, what it finds exactly?

Every context is prefilled once, exactly, and shared by the exact reference and all formats.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from quantkv.arms.arm import Format, OnArm, Progress, Result, failure, success
from quantkv.cache.quantized import QuantizedCache
from quantkv.errors import QuantKVError
from quantkv.instruments.divergence import check_reference
from quantkv.instruments.huggingface import check_length
from quantkv.measurements.packed_arms import REFERENCE, reference, spec_of
from quantkv.measurements.packed_reads import check_packed, packed_read_fraction
from quantkv.measurements.prefill import prefilled
from quantkv.measurements.retrieval.answers import Answered, answer, calls_after
from quantkv.measurements.retrieval.questions import Question
from quantkv.measurements.retrieval.section import summarise
from quantkv.measurements.running import effective


def retrieval_block(
    model: Any,
    questions: Sequence[Question],
    arms: Mapping[str, Format],
    *,
    tail: int,
    on_arm: OnArm | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> dict[str, Result]:
    """Ask every arm the questions of one task at one context; `on_arm` gets each result at the end.

    `tail` is what the questions were made with. An arm that fails gets a result that says so and the others
    go on.
    """
    check_length(model, max(map(_tokens, questions)))
    block = _Block(model, tail, [_Arm(label, given) for label, given in arms.items()])
    for done, question in enumerate(questions):
        if progress is not None:
            progress(question.task, done, len(questions))
        block.ask(question)
    results = {arm.label: block.result(arm, questions, seed) for arm in block.arms}
    for label, result in results.items():
        if on_arm is not None:
            on_arm(label, result)
    return results


def _tokens(question: Question) -> int:
    sample = question.sample
    return len(sample.context) + len(sample.question) + len(sample.answer)


@dataclass(slots=True)
class _Arm:
    label: str
    given: Format
    answers: list[Answered] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    saturated: int = 0
    effective: Result | None = None
    seconds: float = 0.0
    error: Exception | None = None


class _Block:
    """What all arms share: the prefills, and the answers of the exact cache."""

    def __init__(self, model: Any, tail: int, arms: list[_Arm]) -> None:
        self.model, self.tail, self.arms = model, tail, arms
        self.reference = _Arm(REFERENCE, reference(model))

    def ask(self, question: Question) -> None:
        context, logits = prefilled(self.model, question.sample.context[None])
        self._attempt(self.reference, question, context, logits)
        for arm in self.arms:
            arm.error = arm.error or self.reference.error
            self._attempt(arm, question, context, logits)

    def _attempt(self, arm: _Arm, question: Question, context: DynamicCache, logits: Tensor) -> None:
        """Ask one arm; one that has failed is out, the others go on."""
        if arm.error is not None:
            return
        begin = time.perf_counter()
        try:
            check_reference(logits, "after the context")
            self._answer(arm, question, context)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            arm.error = error
        arm.seconds += time.perf_counter() - begin

    def _answer(self, arm: _Arm, question: Question, context: DynamicCache) -> None:
        sample, spec = question.sample, spec_of(arm.label, arm.given)
        cache = QuantizedCache.from_cache(context, self.model.config, spec)
        length = len(sample.context)
        check_packed(arm.label, cache, length, sample.place, tail=self.tail)
        arm.answers.append(answer(self.model, cache, sample))
        if arm is self.reference and math.isnan(arm.answers[-1].log_prob):
            raise QuantKVError("the exact cache itself gives answers that are not finite: nothing is said")
        arm.reads.append(packed_read_fraction(cache, length, calls_after(sample)))
        arm.saturated += cache.saturated
        arm.effective = effective(self.model, spec, cache, attn="quantkv", saturated=arm.saturated)

    def result(self, arm: _Arm, questions: Sequence[Question], seed: int) -> Result:
        if arm.error is not None or arm.effective is None:
            return failure("retrieval", arm.error or RuntimeError("not measured"), arm.seconds)
        packed_read = sum(arm.reads) / len(arm.reads)
        section = summarise(
            questions, arm.answers, self.reference.answers, packed_read=packed_read, seed=seed
        )
        return success("retrieval", section.to_dict(), arm.effective, arm.seconds)
