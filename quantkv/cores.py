"""How many cores there are to use."""

from __future__ import annotations

import os
from functools import cache


@cache
def cores() -> int:
    """Cores this process may use. Counted once: OpenMP may bind the thread that asks to one of them later."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
