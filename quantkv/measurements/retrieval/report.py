"""What is said of retrieval: its table, how its numbers were made, what changed between two rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantkv.instruments.statistics import SIGNIFICANT
from quantkv.studies.changes import Change, Row, moved, paired, same_samples, tested, unpaired
from quantkv.studies.column import KindColumn, Record, Text, percent
from quantkv.wording import numbers
from quantkv.wording.parts import text_words


def _share(which: str) -> Text:
    """A share of right answers and its interval, in percent."""

    def text(section: Record) -> str:
        value, low, high = (100 * section[f"exact_match{which}{end}"] for end in ("", "_low", "_high"))
        return f"{value:.0f} [{low:.0f}, {high:.0f}]"

    return text


def _log_prob(section: Record) -> str:
    interval = (section[f"delta_log_prob{end}"] for end in ("", "_low", "_high"))
    return numbers.with_interval(*interval, sign=True, default=3)


def _p_value(section: Record) -> str:
    return numbers.compact(section["p_value"]) if section["conclusive"] else numbers.DASH


def _verdict(section: Record) -> str:
    """So few questions that no answers to them could differ for sure show no equality either."""
    if section["conclusive"] and 2 * 0.5 ** section["n"] >= SIGNIFICANT:
        return "too few questions"
    return str(section["verdict"] or "inconclusive")


def table() -> tuple[KindColumn, ...]:
    return (
        KindColumn("right (%)", "right %", _share(""), "exact_match"),
        KindColumn("exact cache (%)", "exact %", _share("_ref")),
        KindColumn("p", "p", _p_value),
        KindColumn("Δ log-prob (nats/answer)", "Δlogp", _log_prob),
        KindColumn("packed reads (%)", "packed %", percent("packed_read_fraction")),
        KindColumn("verdict", "verdict", _verdict),
    )


def caption(rows: Sequence[Row]) -> str:
    from quantkv.studies.study import protocol_of

    said = protocol_of(rows[0])
    depths = ", ".join(f"{depth:g}" for depth in said.get("depths") or [])
    return (
        f"{said.get('samples')} questions at each depth of {depths}, filler {text_words(said)}; contexts "
        "prefilled exactly and packed, the question reads them packed, nothing asked for lies in the last "
        f"{said.get('tail')} tokens; right: greedy decoding gives the whole answer, with Wilson 95 % "
        "intervals; p: exact paired test against the exact cache on the same questions."
    )


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
