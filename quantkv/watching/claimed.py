"""Who works on a folder now: its claims, and whether their owners live."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkv.rows.claims import is_stale
from quantkv.wording.escapes import visible


@dataclass(frozen=True, slots=True)
class Claim:
    """A cell that somebody took, by its key and its title ("" where the file cannot be read). ``heartbeat``
    is the age of the last sign of life in seconds; a stale claim is one whose owner ended, or gave no sign
    for too long: the next worker takes it over."""

    key: str
    cell: str
    worker: str
    heartbeat: float
    stale: bool


@dataclass(frozen=True, slots=True)
class ClaimingWorker:
    """The claims of one process."""

    name: str
    cells: int
    heartbeat: float
    stale: bool


def read_claims(folder: Path) -> list[Claim]:
    """The claims of a results folder, in the order of their names. One that goes meanwhile is left out."""
    found = (_read(path) for path in sorted((folder / ".claims").glob("*.json")))
    return [claim for claim in found if claim is not None]


def is_being_worked_on(folder: Path) -> bool:
    """Whether some process opened the folder for work and has not closed it; it may hold no cell just now."""
    return (folder / ".claims").is_dir()


def workers(claims: Sequence[Claim]) -> list[ClaimingWorker]:
    """Claims by process; a process is stale when all of its claims are."""
    names = dict.fromkeys(claim.worker for claim in claims)
    groups = {name: [claim for claim in claims if claim.worker == name] for name in names}
    return [
        ClaimingWorker(name, len(own), min(c.heartbeat for c in own), all(c.stale for c in own))
        for name, own in groups.items()
    ]


def _read(path: Path) -> Claim | None:
    try:
        age = max(0.0, time.time() - path.stat().st_mtime)
        owner: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        owner = None
    named = isinstance(owner, dict) and "host" in owner
    worker = f"{owner['host']} process {owner.get('pid')}" if named else "unknown"
    title = str(owner.get("cell") or "") if named else ""
    return Claim(path.stem, visible(title), visible(worker), age, is_stale(path))
