"""Speed of cache formats, always beside DynamicCache in the same process and the same minute.

Lanes take turns: in every round each lane decodes a block of steps, in random order, so that a slow minute of
the machine hits all of them. Every lane is fed the same tokens and every cache grows equally.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantkv.arms.arm import BASELINE, Format, OnArm, Progress, Result, failure, ignore, parse_format, success
from quantkv.errors import QuantKVError
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.instruments.windows import check_counts, feed_tokens
from quantkv.measurements.running import attention_of, effective, new_cache
from quantkv.measurements.speed.section import Bandwidth, Timings, speed_section

FILLS = ("prefill", "synthetic")
WARM_UP_TOKENS, WARM_UP_STEPS = 256, 4
PREFILL_SECONDS, PREFILL_PASSES = 2.0, 5


def speed_block(
    model: Any,
    arms: Mapping[str, Format],
    *,
    context: int,
    ids: Tensor,
    batch: int = 1,
    rounds: int = 10,
    block: int = 8,
    fill: str = "prefill",
    threads: int | None = None,
    seed: int = 0,
    on_arm: OnArm = ignore,
    progress: Progress = ignore,
    sync: timing.Sync | None = None,
) -> dict[str, Result]:
    """Time prefill, first token and decoding of every arm at `context` cached tokens, beside the baseline.

    `ids` [T] are prefilled and then fed; `fill="synthetic"` puts random keys and values into the caches
    instead. `on_arm` gets the result of each arm; `dynamic` among the arms is the baseline itself.
    """
    if fill not in FILLS:
        raise QuantKVError(f"fill must be one of {', '.join(FILLS)}, got {fill!r}")
    check_counts(context=context, batch=batch, rounds=rounds, threads=1 if threads is None else threads)
    check_counts(2, block=block)  # the first step of each block is dropped
    hf.check_length(model, context + rounds * block)
    feed = feed_tokens(ids, batch, context + rounds * block).to(model.device)
    race = Race(model, feed, context, fill, random.Random(seed), sync or timing.default_sync(model.device))
    lanes = [Lane(label, parse_format(given)) for label, given in arms.items()]
    with timing.threads(threads), torch.inference_mode():
        race.prepare(lanes, progress)
        race.decode_rounds(rounds, block, progress)
        results = {lane.label: race.result(lane) for lane in lanes}
    for label, result in results.items():
        on_arm(label, result)
    return results


@dataclass(slots=True)
class Lane:
    """One arm of the race: its cache, its times, and what stopped it."""

    label: str
    spec: Any
    cache: Any = None
    timings: Timings = field(default_factory=Timings)
    seconds: float = 0.0
    error: Exception | None = None


@dataclass
class Race:
    """The lanes of one (model, context, batch), the baseline among them."""

    model: Any
    feed: Tensor
    context: int
    fill: str
    dice: random.Random
    sync: timing.Sync

    def prepare(self, lanes: list[Lane], progress: Progress) -> None:
        """Warm up and fill the cache of every lane, the baseline among them or beside them."""
        self.baseline = next((lane for lane in lanes if lane.spec == BASELINE), Lane(BASELINE, BASELINE))
        self.racing = lanes if self.baseline in lanes else [self.baseline, *lanes]
        self.bandwidth_before = timing.bandwidth_gb_s(self.model.device, self.sync)
        for lane in self.in_turn():
            self.attempt(lane, self._warm_up)
        self._fill_all(progress)

    def decode_rounds(self, rounds: int, block: int, progress: Progress) -> None:
        """In every round each lane decodes `block` steps."""
        with timing.no_garbage_collection():
            for index in range(rounds):
                progress("decode", index, rounds)
                for lane in self.in_turn():
                    self.attempt(lane, self._decode, self.context + index * block, block)
        after = timing.bandwidth_gb_s(self.model.device, self.sync)
        self.bandwidth = Bandwidth(self.bandwidth_before, after)

    def result(self, lane: Lane) -> Result:
        if lane.error is not None:
            return failure("speed", lane.error, lane.seconds)
        ran = effective(self.model, lane.spec, lane.cache, attn=attention_of(self.model, lane.spec))
        section = speed_section(
            lane.timings,
            self.baseline.timings,
            context=self.context,
            batch=len(self.feed),
            bandwidth=self.bandwidth,
            engine=ran["engine"],
            fill=self.fill,
        )
        return success("speed", section, ran, lane.seconds)

    def in_turn(self) -> Iterator[Lane]:
        """The lanes still running, in random order."""
        running = [lane for lane in self.racing if lane.error is None]
        yield from self.dice.sample(running, len(running))

    def attempt(self, lane: Lane, step: Callable[..., Any], *arguments: Any) -> None:
        """Let a lane do a step; a lane that fails is out, unless it is the baseline."""
        begin = time.perf_counter()
        try:
            with hf.attention(self.model, attention_of(self.model, lane.spec)):
                step(lane, *arguments)
        except Exception as error:
            if lane is self.baseline:
                raise
            lane.error, lane.cache = error, None
        lane.seconds += time.perf_counter() - begin

    def _warm_up(self, lane: Lane) -> None:
        """Prefill and decode a short prompt, so that no measurement sets anything up for the first time."""
        cache = new_cache(self.model, lane.spec)
        prompt = min(self.context, WARM_UP_TOKENS)
        hf.forward(self.model, self.feed[:, :prompt], cache)
        for position in range(prompt, min(prompt + WARM_UP_STEPS, self.feed.shape[1])):
            hf.forward(self.model, self.feed[:, position : position + 1], cache)

    def _fill_all(self, progress: Progress) -> None:
        """Fill every cache; short prompts several times, because one short time says little."""
        step = self.prefill if self.fill == "prefill" else self._fill_synthetic
        begin = time.perf_counter()
        for _ in range(PREFILL_PASSES if self.fill == "prefill" else 1):
            for done, lane in enumerate(self.in_turn()):
                progress("prefill", done, len(self.racing))
                self.attempt(lane, step)
            if time.perf_counter() - begin > PREFILL_SECONDS:
                break

    def prefill(self, lane: Lane) -> None:
        """Give a lane a fresh cache and time how the prompt fills it."""
        lane.cache = None
        cache = new_cache(self.model, lane.spec)
        prompt = self.feed[:, : self.context]
        logits, prefill = timing.timed(lambda: hf.forward(self.model, prompt, cache), self.sync)
        _, choice = timing.timed(lambda: logits[:, -1].argmax(-1).tolist(), self.sync)
        lane.cache = cache
        lane.timings.prefill.append(prefill)
        lane.timings.first_token.append(prefill + choice)

    def _fill_synthetic(self, lane: Lane) -> None:
        lane.cache = hf.fill(new_cache(self.model, lane.spec), self.model, self.context, len(self.feed))

    def _decode(self, lane: Lane, start: int, steps: int) -> None:
        seconds = []
        for position in range(start, start + steps):
            token = self.feed[:, position : position + 1]
            choice, spent = timing.timed(partial(self.step, lane, token), self.sync)
            seconds.append(spent)
            lane.timings.predicted.append(choice)
        lane.timings.rounds.append(seconds)

    def step(self, lane: Lane, token: Tensor) -> list[int]:
        """One decode step; what each row of the batch would say next."""
        return hf.forward(self.model, token, lane.cache)[:, -1].argmax(-1).tolist()
