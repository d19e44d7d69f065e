"""What is compared in two rows of memory."""

from __future__ import annotations

from collections.abc import Iterator

from quantkv.studies.changes import Change, exact, single
from quantkv.studies.pairs import Row


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    ma, mb = a["memory"], b["memory"]
    yield exact("held_bytes", "bytes", ma["held_bytes"], mb["held_bytes"])
    for name in ("prefill_peak_bytes", "decode_peak_bytes"):
        yield single(name, "bytes", ma.get(name), mb.get(name), factor=True)
