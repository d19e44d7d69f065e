"""Time limits that hold while we run: a process that is stopped, or whose machine sleeps, uses none."""

from __future__ import annotations

import subprocess
import time

TICK_SECONDS = 1.0
"""Whoever waits asks the clock at least this often."""
LONGEST_SECONDS = 2 * TICK_SECONDS


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
