"""Where and with what a number was made."""

import os
import platform
import subprocess
import time
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from quantkv.cores import cores
from quantkv.rows.kinds import versions
from quantkv.version import __version__, installed


class Clock:
    """Started when a measurement begins; knows when that was and how long it took."""

    def __init__(self) -> None:
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self._begin, 3)


def provenance(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The provenance section of a row."""
    clock = Clock()
    return {
        "quantkv": __version__,
        "metrics": versions(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": installed("transformers"),
        "commit": commit(),
        "machine": machine(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "load_1m": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "started": clock.started,
        "seconds": clock.seconds,
    }


@cache
def machine() -> dict[str, Any]:
    """The processor, the cores this process may use, the memory, and the accelerator if there is one."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "ram_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
    }


@cache
def commit() -> str | None:
    """Commit of the source tree quantkv runs from, with "+dirty" when it has uncommitted changes."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "quantkv")
    return f"{head}+dirty" if head and changed else head


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
