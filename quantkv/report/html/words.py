"""The summary in words: what each format costs, holds and takes, with intervals.

Sentences are made from a study's records at one context, the longest with quality numbers. Of several seeds
the one with the largest KL speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.drawing.style import BASELINE
from quantkv.measurements.memory.columns import MIB
from quantkv.studies.column import reference_mark
from quantkv.studies.columns import competes
from quantkv.studies.study import CAUTION_KL, UNFIT_KL, Record, Study
from quantkv.wording import numbers
from quantkv.wording.numbers import missing

SEVERITY = ("", "flagged", "caution", "unfit")
ENDS = ("kl_low", "delta_nll_low", "ratio_low")
BADGES = {"unfit": "damaged", "caution": "caution", "flagged": "flagged", "": ""}


@dataclass(frozen=True)
class Sentence:
    """What matters most of it comes ``first``, for readers who only skim."""

    first: str
    rest: str

    def __str__(self) -> str:
        return self.first + self.rest


@dataclass(frozen=True)
class Item:
    """One format: its worst verdict over all contexts and seeds, and a sentence each of what was measured."""

    label: str
    verdict: str
    badge: str
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class Words:
    """``lead`` compares the formats, ``items`` has one entry for each; ``brackets`` tells of intervals."""

    context: int
    brackets: bool
    lead: tuple[str, ...]
    items: tuple[Item, ...]


def words(study: Study) -> Words:
    records = study.records()
    context = headline_context(records)
    here = _one_seed([record for record in records if record["context"] == context])
    worst = {label: _worst(records, label) for label in dict.fromkeys(r["label"] for r in records)}
    lead = (*_quality_lead(here, worst), *_memory_lead(here, worst), *_speed_lead(here, worst))
    items = [_item(record, worst[record["label"]]) for record in here if record["label"] != BASELINE]
    brackets = not all(missing(record[end]) for record in here for end in ENDS)
    return Words(context, brackets, tuple(filter(None, lead)), tuple(items))


def headline_context(records: Sequence[Record]) -> int:
    """The longest context with quality numbers, or the longest of all."""
    scored = [record["context"] for record in records if not missing(record["kl_mean"])]
    return int(max(scored or [record["context"] for record in records]))


def _one_seed(records: Iterable[Record]) -> list[Record]:
    chosen: dict[str, Record] = {}
    for record in records:
        known = chosen.get(record["label"])
        if known is None or _kl(record) > _kl(known):
            chosen[record["label"]] = record
    return list(chosen.values())


def _kl(record: Record) -> float:
    return -1.0 if missing(record["kl_mean"]) else float(record["kl_mean"])


def _worst(records: Iterable[Record], label: str) -> str:
    verdicts = [record["verdict"] for record in records if record["label"] == label]
    return max(verdicts, key=SEVERITY.index)


def cost(record: Record) -> str:
    """``none``, ``some`` or ``gain`` by where the interval of ΔNLL lies; ``unknown`` without an interval."""
    low, high = record["delta_nll_low"], record["delta_nll_high"]
    if missing(low) or missing(high):
        return "unknown"
    return "some" if low > 0 else "gain" if high < 0 else "none"


def _quality_lead(here: Sequence[Record], worst: dict[str, str]) -> list[str]:
    scored = [r for r in here if not missing(r["kl_mean"]) and r["label"] != BASELINE]
    sound = [r for r in scored if worst[r["label"]] not in ("unfit", "caution")]
    named: dict[str, list[Record]] = {
        f"Damaged, with a mean KL of {UNFIT_KL:g} nats per token or more at some context": [
            r for r in scored if worst[r["label"]] == "unfit"
        ],
        f"To be used with caution, with a mean KL of {CAUTION_KL:g} or more": [
            r for r in scored if worst[r["label"]] == "caution"
        ],
        "No cost in perplexity that these windows can tell from zero": [
            r for r in sound if cost(r) == "none"
        ],
        "A small cost in perplexity": [r for r in sound if cost(r) == "some"],
        "A perplexity below that of the exact cache, beyond the interval": [
            r for r in sound if cost(r) == "gain"
        ],
        "Too few windows to tell whether it costs perplexity": [r for r in sound if cost(r) == "unknown"],
    }
    return [f"{said}: {_names(records)}{_at_most(records)}." for said, records in named.items() if records]


def _at_most(records: Sequence[Record]) -> str:
    """How much those could still cost whose interval holds zero."""
    if any(cost(record) != "none" or record["verdict"] in ("unfit", "caution") for record in records):
        return ""
    highest = numbers.compact(max(record["delta_nll_high"] for record in records))
    return f" (ΔNLL at most {highest} nats per token)"


def _memory_lead(here: Sequence[Record], worst: dict[str, str]) -> list[str]:
    weighed = [r for r in here if not missing(r["ratio_to_16bit"]) and _may_win(r, worst)]
    if not weighed:
        return []
    least = min(weighed, key=lambda r: r["ratio_to_16bit"])
    share = numbers.ratio(least["ratio_to_16bit"])
    return [f"The smallest cache weighed among sound formats is that of {least['label']}, {share} × 16 bits."]


def _speed_lead(here: Sequence[Record], worst: dict[str, str]) -> list[str]:
    """The fastest format, and those whose intervals reach into its own: they are not slower for sure."""
    timed = [
        r
        for r in here
        if not missing(r["ratio_to_baseline"]) and r["label"] != BASELINE and not reference_mark(r)
    ]
    sound = [r for r in timed if worst[r["label"]] != "unfit"]
    if not sound:
        return []
    first = min(sound, key=lambda r: r["ratio_to_baseline"])
    if missing(first["ratio_high"]):
        return ["Too few rounds to rank formats by their decode time."]
    near = [r for r in sound if r is not first and not _above(r, first)]
    text = f"The fastest timed is {first['label']}, at {_speed_ratio(first)} of DynamicCache's decode time"
    return [text + (f"; the intervals do not tell {_names(near)} from it." if near else ".")]


def _above(record: Record, first: Record) -> bool:
    low, high = record["ratio_low"], first["ratio_high"]
    return not missing(low) and not missing(high) and low > high


def _may_win(record: Record, worst: dict[str, str]) -> bool:
    return competes(record) and worst[record["label"]] != "unfit"


def _item(record: Record, verdict: str) -> Item:
    parts: tuple[Callable[[Record], Sentence | None], ...] = (
        quality_sentence,
        memory_sentence,
        speed_sentence,
    )
    sentences = tuple(sentence for part in parts if (sentence := part(record)) is not None)
    nothing = (Sentence("Nothing was measured here", "."),)
    return Item(record["label"], verdict, BADGES[verdict], sentences or nothing)


def quality_sentence(record: Record) -> Sentence | None:
    if not missing(record["citation"]):
        return Sentence(f"Perplexity {numbers.fixed(record['perplexity'], 2)}", " as published.")
    if missing(record["kl_mean"]):
        return None
    delta = numbers.with_interval(
        record["delta_nll"], record["delta_nll_low"], record["delta_nll_high"], sign=True
    )
    kl = numbers.compact_interval(record["kl_mean"], record["kl_low"], record["kl_high"])
    top1 = numbers.percent(record["top1_agreement"])
    rest = f" (ΔNLL {delta}), KL {kl}, same first choice at {top1} % of tokens."
    return Sentence(f"Perplexity × {numbers.fixed(record['ppl_ratio'], 4)}", rest)


def memory_sentence(record: Record) -> Sentence | None:
    bits = record["bits_cache"]
    in_bits = "" if missing(bits) else f"{numbers.fixed(bits, 2)} bits per element"
    if missing(record["held_bytes"]):
        return Sentence(f"Takes {in_bits}", "; not weighed.") if in_bits and not record["simulated"] else None
    size = f"{numbers.significant(record['held_bytes'] / MIB)} MiB"
    held = f"Holds {numbers.ratio(record['ratio_to_16bit'])} × a 16-bit cache"
    return Sentence(held, f": {', '.join(filter(None, (size, in_bits)))}.")


def speed_sentence(record: Record) -> Sentence | None:
    if missing(record["decode_ms_median"]):
        return None
    time = f"{numbers.significant(record['decode_ms_median'])} ms a step"
    if reference_mark(record):
        return Sentence(f"Decodes at {time}", " on the PyTorch reference engine, which is no speed claim.")
    if missing(record["ratio_to_baseline"]):
        return Sentence(f"Decodes at {time}", ".")
    return Sentence(f"Decodes in {_speed_ratio(record)} × DynamicCache's time", f": {time}.")


def _speed_ratio(record: Record) -> str:
    ends = (record["ratio_low"], record["ratio_high"])
    text = numbers.ratio(record["ratio_to_baseline"])
    return text if any(map(missing, ends)) else f"{text} [{', '.join(numbers.ratio(end) for end in ends)}]"


def _names(records: Sequence[Any]) -> str:
    *before, last = [record["label"] for record in records]
    return f"{', '.join(before)} and {last}" if before else last
