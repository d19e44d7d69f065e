"""Peak memory of a phase: resident set on Linux, allocated and reserved bytes on CUDA.

The counters are reset once, at the start of a phase; a counter that this machine lacks reads None, never 0.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"


class ResidentSet:
    """High-water mark of the resident set. `base` is the level of the loaded, warmed model."""

    name = "rss"

    def __init__(self) -> None:
        release_memory()
        self.base = _status("VmRSS")
        self._resets = False

    def start(self) -> None:
        release_memory()
        self._resets = _reset_high_water()

    def peak(self) -> int | None:
        if not self._resets or self.base is None:
            return None
        high = _status("VmHWM")
        return None if high is None else max(0, high - self.base)

    def reserved_peak(self) -> None:
        return None


class CudaAllocator:
    """PyTorch's own counters: bytes in tensors, and bytes it took from the device."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        release_memory()
        torch.cuda.empty_cache()
        self._device = device
        self.base = torch.cuda.memory_allocated(device)
        self.base_reserved = torch.cuda.memory_reserved(device)

    def start(self) -> None:
        release_memory()
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self.base

    def reserved_peak(self) -> int | None:
        return torch.cuda.max_memory_reserved(self._device) - self.base_reserved


Counter = ResidentSet | CudaAllocator
"""Bytes over the level of `base`: start a phase, then ask."""


def counter(device: torch.device) -> Counter:
    return CudaAllocator(device) if device.type == "cuda" else ResidentSet()


def release_memory() -> None:
    """Give freed memory back to the system, so that a peak starts from what is really in use."""
    gc.collect()
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (OSError, AttributeError):
            return


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None where there is no such file."""
    if not STATUS.exists():
        return None
    lines = (line.split() for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return next((int(line[1]) * 1024 for line in lines), None)


def _reset_high_water() -> bool:
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True
