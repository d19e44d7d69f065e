"""Byte sizes as people write them, and how much memory there is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import psutil
import torch

from quantkv.errors import QuantKVError
from quantkv.wording.numbers import significant

UNITS = {"B": 1} | {
    f"{letter}{tail}": base**power
    for tail, base in (("B", 1000), ("iB", 1024))
    for power, letter in enumerate("KMGT", 1)
}
GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """A number of bytes and where they are."""

    nbytes: int
    where: str


def parse_size(text: str) -> int:
    """Bytes of `24GB` (1e9 bytes each) or `24GiB` (2^30); the unit must be written, because half of all
    readers take a bare G for the other one."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text, re.IGNORECASE)
    unit = next((u for u in UNITS if match and u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise QuantKVError(
            f"size {text!r}; legal: a number and one of {', '.join(UNITS)}, such as 24GB or 24GiB"
        )
    return int(Decimal(match[1]) * UNITS[unit])


def size(nbytes: float) -> str:
    """Three significant digits in powers of 1000: `10.7 GB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.0f} TB" if nbytes >= 999.5 else f"{nbytes:.3g} TB"


def both_sizes(nbytes: float) -> str:
    """`10.74 GB (10.00 GiB)`: what vendors print beside what tools print."""
    return f"{significant(nbytes / 1e9, 4)} GB ({significant(nbytes / 2**30, 4)} GiB)"


def machine_memory() -> Memory:
    """All memory of the first GPU, else what this process may use of the machine's."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        return Memory(device.total_memory, device.name)
    limit = _group("memory.max")
    total = psutil.virtual_memory().total
    return Memory(min(total, limit or total), "RAM of this machine")


def free_memory() -> Memory:
    """What is free now of the first GPU, else of the memory this process may use."""
    if torch.cuda.is_available():
        return Memory(torch.cuda.mem_get_info(0)[0], torch.cuda.get_device_name(0))
    free, limit, used = psutil.virtual_memory().available, _group("memory.max"), _group("memory.current")
    return Memory(free if limit is None or used is None else min(free, max(0, limit - used)), "RAM")


def _group(name: str) -> int | None:
    """A number of this container's control group; None without a group or a limit."""
    try:
        text = (GROUPS / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
