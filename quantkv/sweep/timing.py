"""Time in a sweep: what each cell of a block has used of its limit, and a polite kill as an interruption."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import FrameType

from quantkv.instruments.awake import AwakeClock


class CellClock:
    """Seconds used by each arm of a block; what the arms share has the limits of all of them together. Only
    time in which this process ran counts."""

    def __init__(self, labels: Collection[str], limit: float | None) -> None:
        self._labels, self._limit = labels, limit
        self._used: dict[str | None, float] = defaultdict(float)
        self._clock = AwakeClock()
        self.running: str | None = None

    def turn(self, what: str | None) -> None:
        """From now on ``what`` runs: an arm, or something that they share."""
        self._tick()
        self.running = what if what in self._labels else None

    @property
    def limit(self) -> float | None:
        """Seconds that what runs now may take in all."""
        if self._limit is None or self.running is not None:
            return self._limit
        return self._limit * len(self._labels)

    @property
    def spent(self) -> float:
        """Seconds that what runs now has taken: the arm, or else the whole block."""
        self._tick()
        return sum(self._used.values()) if self.running is None else self._used[self.running]

    def left(self) -> float:
        """Seconds until what runs now has used up its limit, at least 0; infinite without a limit."""
        self._tick()
        return math.inf if self.limit is None else max(0.0, self.limit - self._used[self.running])

    def _tick(self) -> None:
        self._used[self.running] += self._clock.passed()


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """A polite kill (SIGTERM) ends a sweep as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
