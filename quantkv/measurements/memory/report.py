"""What is said of memory: how it was weighed, and what changed between two rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantkv.studies.changes import Change, Row, exact, single
from quantkv.wording.parts import listed


def caption(rows: Sequence[Row]) -> str:
    counters = listed((row.get("memory") or {}).get("counter") for row in rows)
    peaks = f" (peaks by {counters})" if counters else ""
    return f"Memory: bytes the cache holds, each cell in a fresh process{peaks}; ratios to a 16-bit cache."


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    ma, mb = a["memory"], b["memory"]
    yield exact("held_bytes", "bytes", ma["held_bytes"], mb["held_bytes"])
    for name in ("prefill_peak_bytes", "decode_peak_bytes"):
        yield single(name, "bytes", ma.get(name), mb.get(name), factor=True)
