"""Time in a sweep: what each cell of a block has used of its limit, and a polite kill as an interruption."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import FrameType


class CellClock:
    """Seconds used by each arm of a block; what the arms share has the limits of all of them together."""

    def __init__(self, labels: Collection[str], limit: float | None) -> None:
        self._labels, self._limit = labels, limit
        self._used: dict[str | None, float] = defaultdict(float)
        self.running: str | None = None
        self._since = time.monotonic()

    def turn(self, what: str | None) -> None:
        """From now on ``what`` runs: an arm, or something that they share."""
        now = time.monotonic()
        self._used[self.running] += now - self._since
        self.running, self._since = what if what in self._labels else None, now

    @property
    def limit(self) -> float | None:
        """Seconds that what runs now may take in all."""
        if self._limit is None or self.running is not None:
            return self._limit
        return self._limit * len(self._labels)

    def left(self) -> float | None:
        """Seconds until what runs now has used up its limit, at least 0; None without a limit."""
        if self.limit is None:
            return None
        return max(0.0, self.limit - self._used[self.running] - (time.monotonic() - self._since))


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
