"""What is compared in two rows of retrieval."""

from __future__ import annotations

from collections.abc import Iterator

from quantkv.studies.changes import Change, tested
from quantkv.studies.pairs import Row, moved, paired, same_samples, unpaired


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    ra, rb = a["retrieval"], b["retrieval"]
    ours, theirs = ra["answers"], rb["answers"]
    if not same_samples(a, b, "depth", ours, theirs):
        yield unpaired("exact_match", "share", (ra, rb), "samples", more_is_worse=False)
        return
    right = [[answer["right"] for answer in answers] for answers in (ours, theirs)]
    yield tested("exact_match", "share", ra["exact_match"], rb["exact_match"], right)
    gains, one_each = moved("log_prob", ours, theirs), [1] * len(ours)
    yield paired("log_prob", "nats/answer", (ra, rb), gains, one_each, "samples", more_is_worse=False)
