"""Quality of cache formats: teacher-forced scoring through a cache that packs what decoding would pack.

A window's prompt is prefilled once and shared by the reference and all arms. Arms finish one by one while
the prefills of all windows fit in memory, so that a killed run keeps the arms it finished; otherwise the
windows go by one at a time and all arms finish together.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from torch import Tensor

from quantkv.evaluation.arms import Format, OnArm, Progress, Result, failure, parse_format, success
from quantkv.evaluation.bits import cache_figures
from quantkv.evaluation.checks import check_effect, check_exercised, flagged
from quantkv.evaluation.huggingface import check_length
from quantkv.evaluation.quality import Quality, Tally, summarise
from quantkv.evaluation.scoring import PreparedWindow, Scorer
from quantkv.evaluation.windows import make_windows, scored_length

HOST_SHARE = 0.3
"""How much of the free memory the prefills of all windows may take."""


def perplexity(
    model: Any,
    ids: Tensor,
    spec: Format,
    *,
    context: int,
    score: int = 128,
    windows: int = 8,
    prefill: str = "exact",
    seed: int = 0,
    bos_id: int | None = None,
) -> Quality:
    """Quality of one format on token ids `[T]`."""
    plan = make_windows(ids, span=context, score=score, windows=windows, seed=seed, bos_id=bos_id)
    block = _Block(model, context, prefill, seed)
    (arm,) = block.run(plan.at(context), plan.starts, {"format": spec})
    if arm.error is not None:
        raise arm.error
    assert arm.quality is not None
    return arm.quality


def quality_block(
    model: Any,
    windows: Sequence[Tensor],
    arms: Mapping[str, Format],
    *,
    context: int,
    prefill: str = "exact",
    on_arm: OnArm | None = None,
    starts: Sequence[int] | None = None,
    progress: Progress | None = None,
    memory_budget: float | None = None,
    keep_tokens: bool = False,
    seed: int = 0,
) -> dict[str, Result]:
    """Score every arm on the same windows of context + score + 1 ids; `on_arm` gets each result at once.

    An arm that fails gets a result that says so and the others go on. `starts` are the text positions of the
    first scored targets; `memory_budget` bounds the bytes of kept prefills (by default 30 % of free memory).
    """
    block = _Block(model, context, prefill, seed, progress, memory_budget)
    results: dict[str, Result] = {}
    for arm in block.run(windows, starts, arms):
        results[arm.label] = arm.result(keep_tokens)
        if on_arm is not None:
            on_arm(arm.label, results[arm.label])
    return results


@dataclass(slots=True)
class _Arm:
    label: str
    spec: Any
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    error: Exception | None = None
    quality: Quality | None = None
    effective: Result | None = None

    def result(self, keep_tokens: bool) -> Result:
        if self.quality is None or self.effective is None:
            return failure("quality", self.error or RuntimeError("not measured"), self.seconds)
        extra = {"tokens": self.tally.tokens()} if keep_tokens else {}
        return success("quality", self.quality.to_dict(), self.effective, self.seconds, **extra)


class _Block:
    """What all arms of one (model, windows, context, prefill) share."""

    def __init__(
        self,
        model: Any,
        context: int,
        prefill: str,
        seed: int,
        progress: Progress | None = None,
        memory_budget: float | None = None,
    ) -> None:
        self.model, self.context, self.seed = model, context, seed
        self.scorer = Scorer(model, context=context, prefill=prefill)
        self.progress = progress or (lambda what, done, total: None)
        self.budget = (
            psutil.virtual_memory().available * HOST_SHARE if memory_budget is None else memory_budget
        )
        self.floor_kl: float | None = None
        self.score = 0

    def run(
        self, windows: Sequence[Tensor], starts: Sequence[int] | None, formats: Mapping[str, Format]
    ) -> Iterator[_Arm]:
        """Every arm, finished or failed: one by one where the prefills fit, else all after the last one."""
        self.score = scored_length(windows, self.context)
        check_length(self.model, self.context + self.score)
        arms = [_Arm(label, parse_format(given)) for label, given in formats.items()]
        prepared = self._prepared(windows, starts or [None] * len(windows))
        for batch in [[arm] for arm in arms] if isinstance(prepared, list) else [arms]:
            for done, window in enumerate(prepared):
                for arm in batch:
                    self.progress(arm.label, done, len(windows))
                    self._attempt(arm, self._score, window)
            for arm in batch:
                self._attempt(arm, self._finish)
                yield arm

    def _prepared(self, windows: Sequence[Tensor], starts: Sequence[int | None]) -> Iterable[PreparedWindow]:
        """The prefilled windows: a list where all fit the budget, else a stream that holds one at a time."""
        stream = (self._prepare(i, len(windows), *item) for i, item in enumerate(zip(windows, starts)))
        first = next(stream)
        self.floor_kl = self.scorer.floor_kl(first)
        fits = first.nbytes * len(windows) <= self.budget
        return [first, *stream] if fits else itertools.chain([first], stream)

    def _prepare(self, index: int, total: int, ids: Tensor, start: int | None) -> PreparedWindow:
        self.progress("prefill", index, total)
        return self.scorer.prepare(ids, start)

    def _attempt(self, arm: _Arm, step: Any, *arguments: Any) -> None:
        """Run a step of an arm; an arm that fails is out, the others go on."""
        if arm.error is not None:
            return
        begin = time.perf_counter()
        try:
            step(arm, *arguments)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            arm.error = error
        arm.seconds += time.perf_counter() - begin

    def _score(self, arm: _Arm, window: PreparedWindow) -> None:
        scored = self.scorer.score(window, arm.spec)
        check_exercised(arm.label, scored.packed_read, self.context)
        arm.tally.add(
            scored.tokens, start=window.start, packed_read=scored.packed_read, identical=scored.identical
        )

    def _finish(self, arm: _Arm) -> None:
        check_effect(arm.label, arm.spec, arm.tally.identical)
        bits, arm.effective = cache_figures(self.model, arm.spec, self.context, self.score)
        quality = summarise(arm.tally, bits=bits, floor_path_kl=self.floor_kl, seed=self.seed)
        arm.quality = flagged(quality, arm.spec)
