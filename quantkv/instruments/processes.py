"""Processes that end in time: with the one that started them, in whatever way that ends, on every system; and
within limits that hold while we run, as a process that is stopped, or whose machine sleeps, uses none.

The parent holds the writing end of a pipe whose reading end is the child's standard input, and writes
nothing: when the parent is gone the system closes its end, and the child reads the end of the file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

STDIN = 0
TICK_SECONDS = 1.0
"""Whoever waits asks the clock at least this often."""
LONGEST_SECONDS = 2 * TICK_SECONDS


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """The standard input for a child: open as long as the body runs and this process lives."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def end_with_parent(folder: Path | None = None) -> None:
    """In the child: once standard input ends, stop, and remove ``folder`` with its files before that."""

    def watch() -> None:
        while os.read(STDIN, 1):  # not sys.stdin, whose lock would be held when the interpreter shuts down
            pass
        if folder is not None:
            _remove(folder)
        os._exit(1)

    threading.Thread(target=watch, name="quantkv-orphan", daemon=True).start()


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


class AwakeClock:
    """Seconds during which this process ran. More than a tick or two between two questions means that it did
    not run in between, and counts as two."""

    def __init__(self) -> None:
        self._asked = time.monotonic()

    def passed(self) -> float:
        """Since the last question."""
        now = time.monotonic()
        gap, self._asked = now - self._asked, now
        return min(gap, LONGEST_SECONDS)


def output(process: subprocess.Popen[str], limit: float | None) -> tuple[str, str]:
    """What a process writes until it ends; TimeoutExpired once it took longer than ``limit``. It does not
    outlive an exception."""
    clock, used = AwakeClock(), 0.0
    try:
        while True:
            left = TICK_SECONDS if limit is None else min(TICK_SECONDS, limit - used)
            try:
                return process.communicate(timeout=max(0.0, left))
            except subprocess.TimeoutExpired:
                used += clock.passed()
                if limit is not None and used >= limit:
                    raise
    finally:
        process.kill()
        process.wait()
