"""How long the rest of a sweep will take, from the cells that are finished."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from quantkv.rows.files import Row

GROWING_SHARE = 0.5
"""How much of a cell's time is taken to grow with its context, until a second context tells."""


class Forecast:
    """Seconds per cell of a kind and context; ``workers`` says how many cells of a kind run at a time."""

    def __init__(self, workers: Mapping[str, int] | None = None) -> None:
        self._workers = workers or {}
        self._seen: dict[str, dict[int, list[float]]] = {}
        self._clock: dict[str, float] = defaultdict(float)
        self._booked: dict[str, float] = defaultdict(float)

    def learn(self, kind: str, context: int, seconds: float) -> None:
        self._seen.setdefault(kind, {}).setdefault(context, []).append(seconds)

    def learn_row(self, row: Row) -> None:
        seconds = (row.get("provenance") or {}).get("seconds")
        if row["status"] == "ok" and isinstance(seconds, int | float):
            self.learn(row["kind"], row["requested"]["context"], seconds)

    @contextmanager
    def block(self, kind: str, context: int, cells: int) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.took(kind, context, cells, time.perf_counter() - begin)

    def took(self, kind: str, context: int, cells: int, seconds: float) -> None:
        """A whole block on the clock: what its cells share, such as the exact reference, is in no cell's own
        seconds."""
        if kind in self._seen:
            self._clock[kind] += seconds
            self._booked[kind] += self._rounds(kind, cells) * self._cost(kind, context)

    def left(self, cells: Iterable[tuple[str, int]]) -> tuple[float, dict[str, int]]:
        """Seconds for these (kind, context) cells, and how many there are of each kind of which none has
        finished: those are not in the seconds, since nothing tells how long they take."""
        seconds, unknown = 0.0, Counter[str]()
        for (kind, at), count in Counter(cells).items():
            if kind in self._seen:
                seconds += self._rounds(kind, count) * self._cost(kind, at) * self._shared(kind)
            else:
                unknown[kind] += count
        return seconds, dict(unknown)

    def _shared(self, kind: str) -> float:
        booked = self._booked[kind]
        return max(1.0, self._clock[kind] / booked) if booked else 1.0

    def _rounds(self, kind: str, cells: int) -> int:
        return -(-cells // self._workers.get(kind, 1))

    def _cost(self, kind: str, context: int) -> float:
        """The mean at this context, else the straight line through the means at the others, which may rise
        with the context but never fall."""
        means = {at: statistics.fmean(times) for at, times in sorted(self._seen[kind].items())}
        if context in means:
            return means[context]
        first = next(iter(means))
        if len(means) == 1:
            return means[first] * (1 + GROWING_SHARE * (context / first - 1))
        slope, start = statistics.linear_regression(list(means), list(means.values()))
        if slope <= 0:
            return statistics.fmean(means.values())
        return max(start + slope * context, means[first] * min(1.0, context / first))
