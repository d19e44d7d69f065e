"""Quality of cache formats: teacher-forced scoring through a cache that packs what decoding would pack.

A window's prompt is prefilled once and shared by the reference and all arms. Arms finish one by one while
the prefills of all windows fit in memory, so that a killed run keeps the arms it finished; otherwise the
windows go by one at a time and all arms finish together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch
from torch import Tensor

from quantkv.arms.arm import Format, OnArm, Progress, Result, ignore, parse_format
from quantkv.cache.notices import Notices
from quantkv.decode_exact.simulate import PLAIN_WINDOW
from quantkv.errors import QuantKVError
from quantkv.instruments.divergence import check_reference
from quantkv.instruments.huggingface import check_length
from quantkv.instruments.windows import scored_length
from quantkv.measurements.checks import check_effect, check_exercised
from quantkv.measurements.quality.bits import cache_figures
from quantkv.measurements.quality.protocols import Protocol, make_protocol
from quantkv.measurements.quality.scoring import PreparedWindow, Scorer, bf16_twin, no_bf16_twin
from quantkv.measurements.quality.section import Quality, Tally, flagged, summarise
from quantkv.measurements.quality.token_by_token import TokenByTokenArm, needs_token_by_token
from quantkv.measurements.running import Running
from quantkv.spec.specs import CacheSpec

HOST_SHARE = 0.3
"""How much of the free memory the prefills of all windows may take."""


def perplexity(
    model: Any,
    ids: Tensor,
    spec: Format,
    *,
    context: int,
    score: int | None = None,
    windows: int | None = None,
    prefill: str | None = None,
    protocol: str | Mapping[str, Any] | Protocol | None = None,
    scale_bf16: bool | None = None,
    seed: int = 0,
    bos_id: int | None = None,
) -> Quality:
    """Quality of one format on token ids `[T]`: 8 windows of 128 scored tokens unless said otherwise.

    `protocol` is a preset's name (`gptq-2048`, `fake-quant`) or its settings, and the other settings are laid
    over it; `gptq-2048` wants `context=2048` and ids with the BOS that the tokenizer puts in front, if any.
    """
    changes = {"score": score, "windows": windows, "prefill": prefill, "scale_bf16": scale_bf16}
    settings = make_protocol(protocol, **changes)
    plan = settings.windows_of(ids, bos_id, span=context, seed=seed)
    (arm,) = _Block(model, context, settings, seed).run(plan.at(context), plan.starts, {"format": spec})
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
    protocol: str | Mapping[str, Any] | Protocol | None = None,
    on_arm: OnArm = ignore,
    starts: Sequence[int] | None = None,
    progress: Progress = ignore,
    memory_budget: float | None = None,
    keep_tokens: bool = False,
    seed: int = 0,
) -> dict[str, Result]:
    """Score every arm on the same windows, as the protocol plans them; `on_arm` gets each result at once.

    Windows hold context + score + 1 ids, or those of a window scored whole. An arm that fails gets a result
    that says so and the others go on. `starts` are the text positions of the first scored targets;
    `memory_budget` bounds the bytes of kept prefills (by default 30 % of free memory).
    """
    block = _Block(model, context, make_protocol(protocol), seed, progress, memory_budget)
    results: dict[str, Result] = {}
    for arm in block.run(windows, starts, arms):
        results[arm.label] = arm.found(keep_tokens)
        on_arm(arm.label, results[arm.label])
    return results


@dataclass(slots=True)
class _Arm(Running):
    tally: Tally = field(default_factory=Tally)
    by_token: TokenByTokenArm | None = None
    quality: Quality | None = None
    effective: Result | None = None
    saturated: int = 0

    def found(self, keep_tokens: bool) -> Result:
        section = None if self.quality is None else self.quality.to_dict()
        extra = {"tokens": self.tally.tokens()} if keep_tokens and section else {}
        return self.result("quality", section, self.effective, **extra)


class _Block:
    """What all arms of one (model, windows, context, protocol) share."""

    def __init__(
        self,
        model: Any,
        context: int,
        protocol: Protocol,
        seed: int,
        progress: Progress = ignore,
        memory_budget: float | None = None,
    ) -> None:
        protocol.check_context(context)
        self.model, self.context, self.protocol, self.seed = model, context, protocol, seed
        self.scorer = Scorer(model, protocol, context)
        self.progress = progress
        self.budget = (
            psutil.virtual_memory().available * HOST_SHARE if memory_budget is None else memory_budget
        )
        self.floor_kl: float | None = None
        self.no_scale = no_bf16_twin(model) if protocol.scale_bf16 else None
        self.twin: Any = None
        self.scale_kl: list[Tensor] = []
        self.lengths = range(0)

    def run(
        self, windows: Sequence[Tensor], starts: Sequence[int] | None, formats: Mapping[str, Format]
    ) -> Iterator[_Arm]:
        """Every arm, finished or failed: one by one where the prefills fit, else all after the last one."""
        first = self.scorer.first
        self.lengths = range(max(1, first), first + scored_length(windows, first))
        check_length(self.model, self.lengths.stop)
        if self.protocol.scale_bf16 and self.no_scale is None:
            self.twin = bf16_twin(self.model)
        arms = [self._arm(label, given) for label, given in formats.items()]
        try:
            prepared = self._prepared(windows, starts or [None] * len(windows))
        except QuantKVError as error:  # the exact cache cannot be measured, so no format can
            yield from (replace(arm, error=error) for arm in arms)
            return
        for batch in [[arm] for arm in arms] if isinstance(prepared, list) else [arms]:
            for done, window in enumerate(prepared):
                for arm in batch:
                    self.progress(arm.label, done, len(windows))
                    self._attempt(arm, self._score, window, f"of window {done + 1} of {len(windows)}")
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
        window = self.scorer.prepare(ids, start)
        if self.twin is not None:
            self.scale_kl.append(self.scorer.scale_kl(window, self.twin))
        if index == total - 1:
            self.twin = None  # its weights are needed no more, and the arms may need the room
        return window

    def _arm(self, label: str, given: Format) -> _Arm:
        """An arm that runs the format under the protocol's sinks and recent window."""
        asked = parse_format(given)
        ran = self.protocol.overrule_spec(asked) if isinstance(asked, CacheSpec) else asked
        return _Arm(label, ran)

    def _attempt(self, arm: _Arm, step: Any, *arguments: Any) -> None:
        arm.attempt(step, *arguments)
        if arm.error is not None and arm.by_token is not None:
            arm.by_token.close()

    def _score(self, arm: _Arm, window: PreparedWindow, where: str) -> None:
        check_reference(window.logits_ref, where)
        if arm.by_token is None and needs_token_by_token(arm.given):
            arm.by_token = TokenByTokenArm(self.model, arm.given, self.protocol, self.context)
        scored = arm.by_token.score(window) if arm.by_token else self.scorer.score(window, arm.given)
        arm.saturated += scored.saturated
        check_exercised(arm.label, scored.packed_read, self.context)
        arm.tally.add(
            scored.tokens, start=window.start, packed_read=scored.packed_read, identical=scored.identical
        )

    def _finish(self, arm: _Arm) -> None:
        check_effect(arm.label, arm.given, arm.tally.identical)
        if arm.by_token is not None:
            bits, arm.effective = arm.by_token.figures(self.lengths)
            arm.by_token.close()
        else:
            bits, arm.effective = cache_figures(self.model, arm.given, self.context, self.lengths)
            arm.effective["saturated"] = None if callable(arm.given) else arm.saturated
            if arm.saturated:
                Notices().say("saturated", arm.label)
        if callable(arm.given):
            window = self.protocol.overrule_window(PLAIN_WINDOW)
            arm.effective |= {"sinks": window.sinks} | dict.fromkeys(
                ("recent_key", "recent_value"), window.recent
            )
        if self.no_scale is not None:
            arm.effective["notes"] = [*arm.effective["notes"], f"no scale_bf16: {self.no_scale}"]
        scale = float(torch.cat(self.scale_kl).mean()) if self.scale_kl else None
        quality = summarise(
            arm.tally, bits=bits, floor_path_kl=self.floor_kl, scale_bf16_kl=scale, seed=self.seed
        )
        arm.quality = flagged(quality, arm.given, self.protocol, arm.effective["saturated"])
