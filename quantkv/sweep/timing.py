"""Limits on time in a sweep: a measurement that hangs is stopped, and a polite kill is an interruption."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
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
