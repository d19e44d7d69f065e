"""What a cache's `update` calls take of a decode step, timed apart after the race."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quantkv.instruments import timing
from quantkv.measurements.speed.run import Lane, Race
from quantkv.spec.specs import CacheSpec

FLUSHES = 2
LEAST_STEPS = 16
"""Steps over which `update` is timed where the flush chunks of a cache are short."""


def update_steps(spec: Any) -> int:
    """Steps that hold two flush chunks of every tensor of a cache."""
    if not isinstance(spec, CacheSpec):
        return LEAST_STEPS
    flushes = [t.flush for s in (spec, *(s for _, s in spec.layers)) for t in (s.key, s.value)]
    return max(LEAST_STEPS, FLUSHES * math.lcm(*flushes))


def update_share(race: Race, lane: Lane, start: int, steps: int) -> dict[str, float] | None:
    """Decode on, timing the cache's `update` calls apart: ms of a step spent in them, and the share. None
    where the lane fails."""
    whole: list[float] = []
    with clocked_updates(lane.cache) as spent, timing.no_garbage_collection():
        for position in range(start, start + steps):
            token = race.feed[:, position : position + 1]
            begin = time.perf_counter()
            race.attempt(lane, lambda lane, token=token: race.step(lane, token))
            whole.append(time.perf_counter() - begin)
    if lane.error is not None:
        return None
    return {
        "ms_per_step": 1000 * sum(spent) / steps,
        "share": sum(spent) / sum(whole),
        "steps": steps,
        "step_ms_mean": 1000 * sum(whole) / steps,
    }


@contextmanager
def clocked_updates(cache: Any) -> Iterator[list[float]]:
    """Seconds of each `update` call of a cache."""
    spent: list[float] = []
    plain = cache.update

    def update(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = plain(*args, **kwargs)
        spent.append(time.perf_counter() - begin)
        return result

    cache.update = update
    try:
        yield spent
    finally:
        del cache.update
