"""How a sweep stands at one moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError
from quantkv.files import written_ns
from quantkv.rows.claims import Claim, is_being_worked_on, read_claims
from quantkv.rows.files import Row, rows_there
from quantkv.wording.escapes import one_line

if TYPE_CHECKING:
    from quantkv.watching.planned import PlannedCells

RECENT_SECONDS = 600.0
MIN_SPAN_SECONDS = 30.0
MIN_RECENT = 3


@dataclass(frozen=True, slots=True)
class ClaimingWorker:
    """The claims of one process."""

    name: str
    cells: int
    heartbeat: float
    stale: bool


def workers(claims: Sequence[Claim]) -> list[ClaimingWorker]:
    """Claims by process; a process is stale when all of its claims are."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.worker, []).append(claim)
    return [
        ClaimingWorker(name, len(own), min(c.heartbeat for c in own), all(c.stale for c in own))
        for name, own in groups.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """``counts`` are rows by kind and status. ``total`` and ``left_seconds`` are None where no sweep file
    says what is to come, or no row how long it takes; ``left_unknown`` counts the cells of kinds of which
    none has finished, which are not in the seconds. ``opened``: some process is at work in the folder,
    though it may hold no cell just now."""

    folder: str
    counts: dict[str, dict[str, int]]
    total: int | None
    claims: list[Claim]
    opened: bool
    failures: list[str]
    cells_per_minute: float | None
    left_seconds: float | None
    left_unknown: dict[str, int]

    @property
    def with_rows(self) -> int:
        return sum(sum(counts.values()) for counts in self.counts.values())

    @property
    def running(self) -> int:
        return sum(not claim.stale for claim in self.claims)

    @property
    def stale(self) -> int:
        return len(self.claims) - self.running

    @property
    def done(self) -> bool:
        """Every planned cell has a row and nobody holds one; without a plan, nobody is at work any more. Who
        is at work may yet try failed cells again."""
        if self.running or (self.total is not None and self.with_rows < self.total):
            return False
        return not self.opened or (self.total is not None and not self.status("failed"))

    def status(self, name: str) -> int:
        """Rows of a status: ok, failed or skipped."""
        return sum(counts.get(name, 0) for counts in self.counts.values())

    def to_dict(self) -> dict[str, Any]:
        totals = {name: self.status(name) for name in ("ok", "failed", "skipped")}
        more = {"running": self.running, "stale": self.stale, "done": self.done}
        return asdict(self) | totals | more | {"workers": [asdict(worker) for worker in workers(self.claims)]}


class Folder:
    """A results folder; its rows are read again only when a file changed, so that watching costs the
    measurements little."""

    def __init__(self, path: Path, plan: PlannedCells | None = None) -> None:
        if not path.is_dir() and plan is None:
            raise QuantKVError(
                f"no results folder {path}; with --config, a sweep that is yet to start is waited for"
            )
        self.path, self.plan = path, plan
        self._seen: dict[str, float] = {}
        self._totals: dict[str, Any] = {}

    def look(self) -> Snapshot:
        times = {file.name: (written_ns(file) or 0) / 1e9 for file in self.path.glob("*.json")}
        if not self._totals or times != self._seen:
            self._totals, self._seen = self._read(), times
        claims = read_claims(self.path)
        busy = len({claim.worker for claim in claims if not claim.stale})
        return Snapshot(
            folder=str(self.path),
            total=len(self.plan.cells) if self.plan else None,
            claims=claims,
            opened=is_being_worked_on(self.path),
            cells_per_minute=rate(list(times.values()), time.time()) if busy else None,
            **self._totals | {"left_seconds": self._totals["left_seconds"] / max(1, busy) or None},
        )

    def _read(self) -> dict[str, Any]:
        """What a snapshot holds of rows, with the seconds of one worker."""
        rows = found = rows_there(self.path)
        seconds, unknown = 0.0, dict[str, int]()
        if self.plan is not None:
            rows, without = self.plan.sort(found)
            seconds, unknown = self.plan.seconds(without, found)
        kinds = dict.fromkeys(row["kind"] for row in rows)
        counts = {kind: dict(Counter(row["status"] for row in rows if row["kind"] == kind)) for kind in kinds}
        failures = [failure(row) for row in rows if row["status"] == "failed"]
        return {"counts": counts, "failures": failures, "left_seconds": seconds, "left_unknown": unknown}


def failure(row: Row) -> str:
    """``quality int4-head at 512: out of memory``."""
    asked = row["requested"]
    words = f"{row['kind']} {asked['format']} at {asked['context']}: {row.get('reason') or 'no reason given'}"
    return one_line(words)


def rate(times: Sequence[float], now: float) -> float | None:
    """Rows per minute over the last ten minutes; None for fewer than three rows or half a minute."""
    recent = sorted(at for at in times if now - RECENT_SECONDS <= at <= now)
    if len(recent) < MIN_RECENT or now - recent[0] < MIN_SPAN_SECONDS:
        return None
    return 60 * (len(recent) - 1) / (now - recent[0])
