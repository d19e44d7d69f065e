"""What the machine can do at best: bytes read and multiply-adds per second, measured beside the arms.

`k = time / limit` with `limit = max(bytes / bandwidth, multiply-adds / peak)` says how far an arm is from it.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from quantkv.engines import native
from quantkv.errors import QuantKVError
from quantkv.instruments import timing
from quantkv.instruments.verdict import MAX_DRIFT
from quantkv.rows.provenance import provenance

PROBE_BYTES = 1 << 30
"""The probe reads this much, more than processor caches hold (an eighth of free memory at most)."""
REPEATS = 5
MATRIX = 512


@dataclass(frozen=True, slots=True)
class Rates:
    """One look at the machine: bytes per second read by so many threads, multiply-adds per second of one
    thread (float32)."""

    read: dict[int, float]
    peak: float


class Probe:
    """A buffer to read through, which looks at the machine at once and when asked for the limits. Without the
    native engine torch's own sum and matrix product are timed."""

    def __init__(self, threads: Sequence[int] = (1,)) -> None:
        self.native = native.kernels()
        size = min(PROBE_BYTES, psutil.virtual_memory().available // 8) // 4096 * 4096
        self.buffer = torch.ones(size // 8, dtype=torch.int64)
        self.threads = threads
        self.before = self.rates(threads)

    def limits(self) -> MachineLimits:
        """From the look before the arms ran and one now."""
        return MachineLimits(self.before, self.rates(self.threads), self.method)

    @property
    def method(self) -> str:
        return "native" if self.native else "torch"

    def rates(self, threads: Sequence[int]) -> Rates:
        """Bandwidth by thread count (median of some passes) and the peak of one thread (best of some)."""
        read = {n: statistics.median(self.read(n) for _ in range(REPEATS)) for n in threads}
        return Rates(read, self._peak())

    def read(self, threads: int) -> float:
        """Bytes per second of one pass over the buffer. It also pushes everything else out of the caches."""
        size = self.buffer.nbytes
        if self.native:
            return self.native.read_bandwidth(self.buffer.data_ptr(), size, threads, native.isa())
        with timing.threads(threads):
            return size / seconds_of(self.buffer.sum)

    def _peak(self) -> float:
        if self.native:
            return self.native.peak_multiply_adds(native.isa())
        x = torch.ones(MATRIX, MATRIX)
        with timing.threads(1):
            return MATRIX**3 / min(seconds_of(lambda: x @ x) for _ in range(REPEATS))


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds that work takes on the CPU."""
    return timing.timed(work, lambda: None)[1]


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The rates before and after the arms ran; an arm is held against their mean."""

    before: Rates
    after: Rates
    method: str

    def seconds(self, touched: float, multiply_adds: float, threads: int) -> float:
        """The least time in which so many threads could touch so many bytes and do so many multiply-adds, of
        which each does as many as one alone."""
        read = (self.before.read[threads] + self.after.read[threads]) / 2
        peak = threads * (self.before.peak + self.after.peak) / 2
        return max(touched / read, multiply_adds / peak)

    @property
    def drift(self) -> float:
        """The largest change of a bandwidth from before to after, as a share."""
        changes = [self.after.read[n] / rate - 1 for n, rate in self.before.read.items()]
        return max(changes, key=abs)

    @property
    def flags(self) -> list[str]:
        peak = self.after.peak / self.before.peak - 1
        changes = {"memory bandwidth": self.drift, "peak multiply-adds": peak}
        flags = [f"{what} drifted by {by:+.0%}" for what, by in changes.items() if abs(by) > MAX_DRIFT]
        if self.method == "torch":
            flags.append("limits measured through torch: no native engine")
        return flags

    def as_dict(self, probe_bytes: int) -> dict[str, Any]:
        """GB/s by thread count and 1e9 multiply-adds per second of one thread, before and after."""
        return {
            "read_gb_s_before": {str(n): rate / 1e9 for n, rate in self.before.read.items()},
            "read_gb_s_after": {str(n): rate / 1e9 for n, rate in self.after.read.items()},
            "read_drift": self.drift,
            "peak_gmadd_s_before": self.before.peak / 1e9,
            "peak_gmadd_s_after": self.after.peak / 1e9,
            "probe": self.method,
            "probe_bytes": probe_bytes,
        }


def description(threads: int) -> dict[str, Any]:
    """The machine and the versions, as they stand in a report."""
    where = provenance()
    kept = ("quantkv", "torch", "transformers", "python", "commit", "machine", "load_1m", "started")
    module = native.kernels()
    return {name: where[name] for name in kept} | {
        "threads": threads,
        "isa": native.isa(),
        "usable_isas": list(module.usable_isas()) if module else [],
    }


@contextmanager
def instruction_set(name: str | None) -> Iterator[None]:
    """Run kernels of another build for a while (None: the usual one)."""
    if name is None:
        yield
        return
    if native.kernels() is None:
        raise QuantKVError("there is no native engine here, so no instruction set to choose")
    before = os.environ.get("QUANTKV_ISA")
    os.environ["QUANTKV_ISA"] = name
    native.isa.cache_clear()
    try:
        native.isa()
        yield
    finally:
        os.environ.pop("QUANTKV_ISA")
        os.environ.update({"QUANTKV_ISA": before} if before is not None else {})
        native.isa.cache_clear()
