"""Retrieval through packed caches: can a model still find, through a format, what it finds exactly?

After an exact prefill the first generated token never reads a packed key. So the context alone is prefilled,
once and exactly, and shared by all formats; each packs it; the question comes as a call of its own, which
reads the packed context, and the answer follows token by token. The true answer is fed back: greedy decoding
says it if and only if every one of its tokens is the most likely one after those before it, so one pass gives
the exact match and the log-probability both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.arms.arm import Format, OnArm, Progress, Result, ignore
from quantkv.cache.quantized import QuantizedCache
from quantkv.errors import QuantKVError
from quantkv.instruments.divergence import check_reference, log_softmax
from quantkv.instruments.huggingface import attention, check_length, forward
from quantkv.measurements.checks import spec_of
from quantkv.measurements.packed_reads import check_packed, packed_read_fraction
from quantkv.measurements.retrieval.haystack import Sample
from quantkv.measurements.retrieval.section import Answered, retrieval_section
from quantkv.measurements.retrieval.tasks import Question
from quantkv.measurements.running import REFERENCE, Running, effective, prefilled, reference


def retrieval_block(
    model: Any,
    questions: Sequence[Question],
    arms: Mapping[str, Format],
    *,
    tail: int,
    on_arm: OnArm = ignore,
    progress: Progress = ignore,
    seed: int = 0,
) -> dict[str, Result]:
    """Ask every arm the questions of one task at one context; `on_arm` gets each result at the end.

    `tail` is what the questions were made with. An arm that fails gets a result that says so and the others
    go on.
    """
    parts = ((asked.sample.context, asked.sample.question, asked.sample.answer) for asked in questions)
    check_length(model, max(sum(map(len, part)) for part in parts))
    block = _Block(model, tail, [_Arm(label, given) for label, given in arms.items()])
    for done, question in enumerate(questions):
        progress(question.task, done, len(questions))
        block.ask(question)
    results = {arm.label: block.result(arm, questions, seed) for arm in block.arms}
    for label, result in results.items():
        on_arm(label, result)
    return results


@dataclass(slots=True)
class _Arm(Running):
    answers: list[Answered] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    saturated: int = 0
    effective: Result | None = None


class _Block:
    """What all arms share: the prefills, and the answers of the exact cache."""

    def __init__(self, model: Any, tail: int, arms: list[_Arm]) -> None:
        self.model, self.tail, self.arms = model, tail, arms
        self.reference = _Arm(REFERENCE, reference(model))

    def ask(self, question: Question) -> None:
        context, logits = prefilled(self.model, question.sample.context[None])
        self.reference.attempt(self._answer, question, context, logits)
        for arm in self.arms:
            arm.error = arm.error or self.reference.error
            arm.attempt(self._answer, question, context, logits)

    def _answer(self, arm: _Arm, question: Question, context: DynamicCache, logits: Tensor) -> None:
        check_reference(logits, "after the context")
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
        if arm.error is not None:
            return arm.result("retrieval", None, None)
        packed_read = sum(arm.reads) / len(arm.reads)
        answers = arm.answers, self.reference.answers
        section = retrieval_section(questions, *answers, packed_read=packed_read, seed=seed)
        return arm.result("retrieval", section, arm.effective)


def answer(model: Any, cache: QuantizedCache, sample: Sample) -> Answered:
    """The answer to a sample whose context `cache` holds; the cache grows by question and answer."""
    with torch.inference_mode(), attention(model, "quantkv"):
        logits = [forward(model, sample.question[None], cache)]
        logits += [forward(model, token[None, None], cache) for token in sample.answer[:-1]]
    scores = log_softmax(torch.cat(logits, 1)[0]).cpu()
    said = scores.argmax(-1)
    log_prob = scores.double().gather(-1, sample.answer[:, None]).sum()
    right = torch.equal(said, sample.answer) and not bool(log_prob.isnan())
    return Answered(right, float(log_prob), said)


def calls_after(sample: Sample) -> list[int]:
    """Sizes of the calls after the context: the question at once, then the answer but its last token."""
    return [len(sample.question)] + [1] * (len(sample.answer) - 1)
