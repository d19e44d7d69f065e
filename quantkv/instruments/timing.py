"""Clocks that wait for the device, and a probe of the memory bandwidth that decoding lives on."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

Sync = Callable[[], None]
PROBE_BYTES = 256 << 20


def default_sync(device: torch.device) -> Sync:
    """Wait for the work queued on `device`; nothing to wait for on a CPU."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def timed(work: Callable[[], Any], sync: Sync) -> tuple[Any, float]:
    """The result of `work` and the seconds until the device has finished it."""
    sync()
    begin = time.perf_counter()
    result = work()
    sync()
    return result, time.perf_counter() - begin


def bandwidth_gb_s(device: torch.device, sync: Sync | None = None, *, repeats: int = 5) -> float:
    """Copy speed in GB/s, bytes read and written: a thermometer, read before and after a race."""
    sync = sync or default_sync(device)
    size = PROBE_BYTES if device.type != "cpu" else min(PROBE_BYTES, psutil.virtual_memory().available // 16)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = [timed(lambda: target.copy_(source), sync)[1] for _ in range(repeats)]
    return 2 * source.nbytes / statistics.median(seconds) / 1e9


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Use `count` threads for a while (None: as it is)."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now and not inside a measurement."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
