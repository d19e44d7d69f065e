"""Arms that take turns: in every round each runs once, in random order, so that a slow minute hits all.

`torch.utils.benchmark` and others time one arm after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from quantkv.bench.machine import MachineLimits
from quantkv.errors import QuantKVError
from quantkv.instruments import timing
from quantkv.instruments.statistics import Numbers, ratios, spread

Progress = Callable[[str], None]
"""Told, in a few words, what is measured now."""


def quiet(what: str) -> None:
    """Progress that nobody follows."""


@dataclass
class Arm:
    """One thing to time. `run` does it once; `prepare` and `finish` are not timed.

    `touched` counts bytes read and written and `multiply_adds` the arithmetic of one run; `scratch` is memory
    it needs on top.
    """

    name: str
    run: Callable[[], Any]
    threads: int = 1
    touched: int = 0
    multiply_adds: int = 0
    scratch: int = 0
    prepare: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None
    runs_per_sample: int = 1
    seconds: list[float] = field(default_factory=list)
    output: Any = None

    def about(self) -> dict[str, Any]:
        """What its row in the report says of it beside its name and times."""
        return {}

    def sample(self) -> float:
        """Seconds of one run, the mean over `runs_per_sample` runs in a row."""
        self.prepare()
        _, seconds = timing.timed(self._runs, lambda: None)
        self.finish()
        return seconds / self.runs_per_sample

    def _runs(self) -> None:
        for _ in range(self.runs_per_sample):
            self.output = self.run()


def take_turns(
    arms: Sequence[Arm],
    rounds: int,
    *,
    seed: int = 0,
    between: Callable[[], None] = lambda: None,
    progress: Progress = quiet,
) -> None:
    """Run every arm once unmeasured, then once per round; `between` runs before each run."""
    dice = random.Random(seed)
    with torch.inference_mode(), timing.no_garbage_collection():
        for index in range(rounds + 1):
            progress(f"round {index} of {rounds}" if index else "warming up")
            for arm in dice.sample(list(arms), len(arms)):
                with timing.threads(arm.threads):
                    between()
                    seconds = arm.sample()
                if index:
                    arm.seconds.append(seconds)


def faster(arm: Arm, other: Arm | None) -> Numbers | None:
    """How many times faster an arm is than another; None where there is no other."""
    return None if other is None else ratios(other.seconds, arm.seconds)


def timed_row(arm: Arm, limits: MachineLimits) -> dict[str, Any]:
    """The row of an arm that ran: times in ms, bytes, the limit of the machine and how far it is away."""
    rounds = [1000 * s for s in arm.seconds]
    row = {
        "name": arm.name,
        **arm.about(),
        "threads": arm.threads,
        "rounds_ms": rounds,
        "ms": spread(rounds),
        "bytes": arm.touched,
        "multiply_adds": arm.multiply_adds,
        "gb_s": arm.touched / float(np.median(rounds)) / 1e6,
    }
    add_limit(row, limits, arm.threads)
    return row


def add_limit(row: dict[str, Any], limits: MachineLimits, threads: int) -> None:
    """The least time this machine needs for a row's bytes and multiply-adds, and how far the row is away."""
    limit, median = 1000 * limits.seconds(row["bytes"], row["multiply_adds"], threads), row["ms"]["median"]
    row |= {"limit_ms": limit, "k": median / limit if median else None}


@contextmanager
def refused(what: str) -> Iterator[None]:
    """An allocation that cannot be had, as an error that says for what."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise QuantKVError(f"{what} needs more memory than there is") from error
        raise
