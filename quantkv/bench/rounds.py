"""Arms that take turns: in every round each runs once, in random order, so that a slow minute hits all.

`torch.utils.benchmark` and others time one arm after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from quantkv.bench.machine import seconds_of
from quantkv.bench.settings import Settings
from quantkv.errors import QuantKVError
from quantkv.instruments import timing

Progress = Callable[..., None]
"""Told, in a few words, what is measured now; with `done` what came out."""


def quiet(what: str, done: bool = False) -> None:
    """Progress that nobody follows."""


def rest() -> None:
    """Nothing before, between or after two runs."""


@dataclass
class Arm:
    """One thing to time. `run` does it once; `prepare` and `finish` are not timed.

    `touched` counts bytes read and written and `multiply_adds` the arithmetic of one run; `scratch` is memory
    it needs on top. `about` is what its row in the report says of it beside its name and times.
    """

    name: str
    run: Callable[[], Any]
    threads: int = 1
    touched: int = 0
    multiply_adds: int = 0
    scratch: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[], Any] = rest
    finish: Callable[[], Any] = rest
    runs_per_sample: int = 1
    seconds: list[float] = field(default_factory=list)
    output: Any = None

    def sample(self) -> float:
        """Seconds of one run, the mean over `runs_per_sample` runs in a row."""
        self.prepare()
        seconds = seconds_of(self._runs)
        self.finish()
        return seconds / self.runs_per_sample

    def _runs(self) -> None:
        for _ in range(self.runs_per_sample):
            self.output = self.run()


def take_turns(
    arms: Sequence[Arm], settings: Settings, progress: Progress = quiet, between: Callable[[], Any] = rest
) -> None:
    """Run every arm once unmeasured, then once per round; `between` runs before each run."""
    dice = random.Random(settings.seed)
    with torch.inference_mode(), timing.no_garbage_collection():
        for index in range(settings.rounds + 1):
            progress(f"round {index} of {settings.rounds}" if index else "warming up")
            for arm in dice.sample(list(arms), len(arms)):
                with timing.threads(arm.threads):
                    between()
                    seconds = arm.sample()
                if index:
                    arm.seconds.append(seconds)


@contextmanager
def refused(what: str) -> Iterator[None]:
    """An allocation that cannot be had, as an error that says for what."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise QuantKVError(f"{what} needs more memory than there is") from error
        raise
