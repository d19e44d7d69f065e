"""What a run of a sweep did, by one worker or by several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from quantkv.rows.files import Row, rows_there
from quantkv.rows.row import STATUSES


@dataclass
class Summary:
    """Cells by what became of them; `elsewhere` and `failed_elsewhere` are those of other workers.

    ``exit_code`` is 0, 3 when cells failed, 130 when it was interrupted.
    """

    out: Path
    total: int = 0
    finished_before: int = 0
    elsewhere: int = 0
    failed_elsewhere: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    keys: set[str] = field(default_factory=set)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        return 3 if self.counts["failed"] or self.failed_elsewhere else 0

    @property
    def unfinished(self) -> int:
        return self.total - self.finished_before - self.elsewhere - sum(self.counts.values())

    def rows(self) -> list[Row]:
        """The rows of this sweep, measured now or before."""
        return [row for row in rows_there(self.out) if row["key"] in self.keys]


def together(out: Path, parts: Iterable[Summary]) -> Summary:
    """One summary of workers that shared a sweep. What became of the cells is read from their rows, so that
    those of a worker that was lost count too."""
    parts = list(parts)
    whole = Summary(out, total=max(part.total for part in parts))
    whole.finished_before = min(part.finished_before for part in parts)
    whole.keys = set().union(*(part.keys for part in parts))
    whole.interrupted = any(part.interrupted for part in parts)
    whole.counts |= Counter(row["status"] for row in whole.rows())
    whole.counts["ok"] -= whole.finished_before
    return whole
