"""Time in a sweep: a limit on a measurement that hangs, and an estimate of how long the rest will take."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType


class CellTimeout(BaseException):
    """A cell ran longer than ``run.cell_timeout``; no ``except Exception`` on the way may swallow it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise ``CellTimeout`` in the body after ``seconds``; no effect off the main thread and on Windows."""
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not seconds or not usable:
        yield
        return

    def stop(*_: object) -> None:
        raise CellTimeout(f"took longer than the cell_timeout allows ({seconds:g} s)")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


class Forecast:
    """Seconds per cell, learnt from finished cells of the same kind and scaled by context."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[float]] = {}

    def learn(self, kind: str, context: int, seconds: float) -> None:
        self._seen.setdefault((kind, context), []).append(seconds)

    def left(self, cells: Iterable[tuple[str, int]]) -> float | None:
        """Seconds for these (kind, context) cells; None while nothing of a needed kind has finished."""
        costs = [self._cost(kind, context) for kind, context in cells]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def _cost(self, kind: str, context: int) -> float | None:
        contexts = [seen for of_kind, seen in self._seen if of_kind == kind]
        if not contexts:
            return None
        nearest = min(contexts, key=lambda seen: abs(seen - context))
        times = self._seen[kind, nearest]
        return sum(times) / len(times) * max(1.0, context / nearest)
