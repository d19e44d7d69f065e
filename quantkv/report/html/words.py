"""A study in words: what each format costs, holds and takes, with intervals, and what its rows cannot say.

Sentences are made from a study's records at one context, the longest with quality numbers. Of several seeds
the one with the largest KL speaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantkv.drawing.style import BASELINE
from quantkv.measurements.kind import kind, on_a_page
from quantkv.studies.kind import studied
from quantkv.studies.page import Sentence
from quantkv.studies.study import Record, Study, citation, made_of
from quantkv.wording.numbers import missing

SEVERITY = ("", "flagged", "caution", "unfit")
ENDS = ("kl_low", "delta_nll_low", "ratio_low")
NO_TASK = "No task was scored: KL on running text does not show whether a fact far back is still found."
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
    there = _by_label(record for record in records if record["context"] == context)
    here = [max(own, key=_kl) for own in there.values()]
    verdicts = {label: [r["verdict"] for r in own] for label, own in _by_label(records).items()}
    worst = {label: max(own, key=SEVERITY.index) for label, own in verdicts.items()}
    lead = (sentence for own in on_a_page() for sentence in own.page.lead(here, worst))
    items = [_item(record, worst[record["label"]]) for record in here if record["label"] != BASELINE]
    brackets = not all(missing(record[end]) for record in here for end in ENDS)
    return Words(context, brackets, tuple(filter(None, lead)), tuple(items))


def headline_context(records: Sequence[Record]) -> int:
    """The longest context with quality numbers, or the longest of all."""
    scored = [record["context"] for record in records if not missing(record["kl_mean"])]
    return int(max(scored or [record["context"] for record in records]))


def _by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["label"], []).append(record)
    return found


def _kl(record: Record) -> float:
    return -1.0 if missing(record["kl_mean"]) else float(record["kl_mean"])


def _item(record: Record, verdict: str) -> Item:
    found = (own.page.sentence(record) for own in on_a_page())
    sentences = tuple(sentence for sentence in found if sentence is not None)
    nothing = (Sentence("Nothing was measured here", "."),)
    return Item(record["label"], verdict, BADGES[verdict], sentences or nothing)


def limits(study: Study, kinds: Iterable[str]) -> list[str]:
    """A sentence for each limit; ``kinds`` are all those that rows of any study have."""
    if source := citation(study.rows[0]):
        return [f"From {source}: not measured here, so not to be ranked with what was."]
    records = study.records()
    said = [(own.timed, limit) for own in on_a_page() for limit in own.page.limits(study)]
    found = [limit for timed, limit in said if not timed] + _unmeasured(records)
    found += [] if set(kinds) - set(studied()) else [NO_TASK]
    found += [limit for timed, limit in said if timed]
    if weights := sorted({str(made_of(row, "weights")) for row in study.rows if made_of(row, "weights")}):
        named = ", ".join(weights)
        found.append(f"Costs are on top of those of the weights ({named}), which are not counted.")
    one_seed = " and one seed" if len({record["seed"] for record in records}) == 1 else ""
    return [*filter(None, found), f"Batch {study.batch} only{one_seed}."]


def _unmeasured(records: Sequence[Record]) -> list[str]:
    """Formats without a number of a kind at any context, or that the kind was left out altogether."""
    labels = [label for label in dict.fromkeys(r["label"] for r in records) if label != BASELINE]
    found = []
    for own in map(kind, studied()):
        have = {r["label"] for r in records if r[f"{own.name}_status"] == "ok"}
        if lacking := [label for label in labels if label not in have]:
            which = "any format" if len(lacking) == len(labels) else ", ".join(lacking)
            found.append(f"Not {own.measured}: {which}.")
    return found
