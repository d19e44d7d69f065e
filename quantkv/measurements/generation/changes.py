"""What is compared in two rows of generation."""

from __future__ import annotations

from collections.abc import Iterator

from quantkv.studies.changes import Change, single
from quantkv.studies.pairs import NATS, Row, moved, paired, same_samples, unpaired


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    ga, gb = a["generation"], b["generation"]
    ours, theirs = ga["texts"], gb["texts"]
    if same_samples(a, b, "n", ours, theirs):
        n = [text["n"] for text in ours]
        yield paired("kl_mean", NATS, (ga, gb), moved("sum_kl", ours, theirs), n, "prompts")
    else:
        yield unpaired("kl_mean", NATS, (ga, gb), "prompts")
    for name, unit in (("first_divergence_median", "tokens"), ("equal_tokens", "share")):
        yield single(name, unit, ga.get(name), gb.get(name))
