"""The summary in words: what each format costs, holds and takes, with intervals.

Sentences are made from a study's records at one context, the longest with quality numbers. Of several seeds
the one with the largest KL speaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantkv.drawing.style import BASELINE
from quantkv.measurements.kind import on_a_page
from quantkv.studies.page import Sentence
from quantkv.studies.study import Record, Study
from quantkv.wording.numbers import missing

SEVERITY = ("", "flagged", "caution", "unfit")
ENDS = ("kl_low", "delta_nll_low", "ratio_low")
BADGES = {"unfit": "damaged", "caution": "caution", "flagged": "flagged", "": ""}


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
    lead = (sentence for own in on_a_page() for sentence in own.page().lead(here, worst))
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


def _item(record: Record, verdict: str) -> Item:
    found = (own.page().sentence(record) for own in on_a_page())
    sentences = tuple(sentence for sentence in found if sentence is not None)
    nothing = (Sentence("Nothing was measured here", "."),)
    return Item(record["label"], verdict, BADGES[verdict], sentences or nothing)
