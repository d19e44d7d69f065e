"""What is said of generation: its table, how its numbers were made, what changed between two rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantkv.studies.changes import NATS, Change, Row, moved, paired, same_samples, single, unpaired
from quantkv.studies.column import KindColumn, Record, percent
from quantkv.wording import numbers
from quantkv.wording.parts import text_words


def _kl(section: Record) -> str:
    return numbers.compact_interval(section["kl_mean"], section["kl_low"], section["kl_high"])


def table() -> tuple[KindColumn, ...]:
    return (
        KindColumn("KL along the exact text (nats/token)", "KL", _kl, "kl_mean"),
        KindColumn("top-1 (%)", "top-1 %", percent("top1_agreement")),
        KindColumn("first difference (median token)", "first diff", "{first_divergence_median:g}".format_map),
        KindColumn("texts that differ", "differ", "{diverged}/{prompts}".format_map),
        KindColumn("equal tokens (%)", "equal %", percent("equal_tokens")),
        KindColumn("repeated (%)", "repeat %", percent("repeated")),
        KindColumn("exact cache repeats (%)", "exact rep. %", percent("repeated_ref")),
        KindColumn("packed reads (%)", "packed %", percent("packed_read_fraction")),
    )


def caption(rows: Sequence[Row]) -> str:
    from quantkv.studies.study import protocol_of

    said = protocol_of(rows[0])
    return (
        f"{said.get('tokens')} tokens after each of {said.get('prompts')} prompts, {text_words(said)}; "
        "KL and top-1 along the exact cache's own text, the rest from texts that each format and the exact "
        "cache generate with the same random numbers; repeated: four tokens seen before."
    )


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
