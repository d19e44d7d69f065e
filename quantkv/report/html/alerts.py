"""Warnings, before any number is read: damage, failures, flags, notes, and rows that should not be compared.

They are gathered from all rows, also from those that no table shows because a newer row took their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkv.report.html.index import Results
from quantkv.studies.kind import reported
from quantkv.studies.study import Row, protocol_of, requested
from quantkv.wording.numbers import compact
from quantkv.wording.parts import fingerprint_of

LEVELS = ("damaged", "failed", "caution", "flag", "note")
DAMAGE = {"unfit": ("damaged", "damages the model"), "caution": ("caution", "use with caution")}
"""By verdict the level and the words."""
DISTINGUISHING = ("model", "revision", "dtype", "attn", "format", "spec", "context", "batch", "seed")
DRIFT = re.compile(r"drifted by ([+-]\d+)%")
STRONG_DRIFT = 25.0
"""Percent: a machine that changed by a quarter while it timed makes times that prove nothing."""
VERSIONS = ("quantkv", "commit", "torch", "transformers")


@dataclass(frozen=True)
class Alert:
    """One warning, how loud it is, and the rows it holds for: ``int4-head at 512, 2048``."""

    level: str
    words: str
    where: tuple[str, ...]


def alerts(found: Results) -> list[Alert]:
    """The loudest first; equal words of several rows are one warning."""
    places: dict[tuple[str, str], dict[str, set[int]]] = {}
    for level, words, label, context in _all(found):
        places.setdefault((level, words), {}).setdefault(label, set()).add(context)
    gathered = [Alert(level, words, _where(labels)) for (level, words), labels in places.items()]
    for study in found.studies:
        gathered += [Alert("caution", warning, (study.title,)) for warning in study.warnings]
        gathered += [Alert("note", note, (study.title,)) for note in study.notes]
    gathered += _mixed_versions(found)
    return sorted(gathered, key=lambda alert: (LEVELS.index(alert.level), -_weight(alert.words)))


def _where(labels: Mapping[str, Iterable[int]]) -> tuple[str, ...]:
    return tuple(f"{label} at {', '.join(map(str, sorted(contexts)))}" for label, contexts in labels.items())


def _weight(words: str) -> float:
    """How much a machine drifted, in percent; no other remark of a level weighs more than its neighbours."""
    found = DRIFT.search(words)
    return abs(float(found[1])) if found else 0.0


def _all(found: Results) -> Iterator[tuple[str, str, str, int]]:
    several = len(set(found.subjects)) > 1
    for row, label, subject in zip(found.rows, found.labels, found.subjects):
        name = f"{label} of {subject}" if several else label
        for level, words in _of_row(row):
            yield level, words, name, int(requested(row, "context") or 0)
    yield from _verdicts(found, len(found.studies) > 1)


def _of_row(row: Row) -> Iterator[tuple[str, str]]:
    kind, effective, section = row["kind"], row.get("effective") or {}, row.get(row["kind"]) or {}
    if row.get("status") != "ok":
        yield "failed", f"{kind} {row.get('status')}: {row.get('reason') or 'no reason was recorded'}"
    if section.get("verdict") == "worse":
        yield "caution", f"{kind}: worse than the exact cache on the same samples"
    for flag in section.get("flags") or []:
        yield "caution" if _weight(flag) >= STRONG_DRIFT else "flag", f"{kind}: {flag}"
    for note in effective.get("notes") or []:
        yield "note", f"{kind}: {note}"
    if reported(kind).timed and row.get("status") == "ok" and effective.get("engine") == "reference":
        yield "flag", f"{kind}: timed on the PyTorch reference engine, which is no speed claim (drawn hollow)"


def _verdicts(found: Results, several: bool) -> Iterator[tuple[str, str, str, int]]:
    """Every record that is unfit or wants caution, with the largest KL of its format in the words."""
    for study in found.studies:
        bad = [record for record in study.records() if record["verdict"] in DAMAGE]
        largest: dict[tuple[str, str], float] = {}
        for record in bad:
            key = (record["label"], record["verdict"])
            largest[key] = max(largest.get(key, 0.0), record["kl_mean"])
        for record in bad:
            label, verdict = record["label"], record["verdict"]
            level, words = DAMAGE[verdict]
            said = f"{words}: mean KL up to {compact(largest[label, verdict])} nats per token"
            yield level, said, f"{label} of {study.title}" if several else label, int(record["context"])


def _mixed_versions(found: Results) -> Iterator[Alert]:
    """Rows of the same cell made by other versions, and software that differs between rows."""
    cells: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(found.rows):
        cells.setdefault(_cell(row), []).append(number)
    if twice := tuple(_twice(found, numbers) for numbers in cells.values() if len(numbers) > 1):
        words = "measured more than once: tables and plots show the newest row of each that succeeded"
        yield Alert("flag", words, twice)
    if differing := tuple(filter(None, (_differing(found, name) for name in VERSIONS))):
        yield Alert("note", "rows were made by different software", differing)


def _cell(row: Row) -> tuple[Any, ...]:
    protocol = sorted((str(name), str(value)) for name, value in protocol_of(row).items())
    asked = (str(requested(row, name)) for name in DISTINGUISHING)
    return row["kind"], fingerprint_of(row), *asked, tuple(protocol)


def _twice(found: Results, numbers: list[int]) -> str:
    row = found.rows[numbers[0]]
    made = [found.rows[number].get("provenance") or {} for number in numbers]
    each = [f"{m.get('quantkv')} ({m.get('commit') or 'no commit'})" for m in made]
    where = f"{found.labels[numbers[0]]} at {requested(row, 'context')}"
    return f"{row['kind']} of {where}: {len(numbers)} rows, quantkv {', '.join(dict.fromkeys(each))}"


def _differing(found: Results, name: str) -> str:
    values = [(row.get("provenance") or {}).get(name) for row in found.rows]
    distinct = sorted({str(value) for value in values if value})
    return f"{name}: {', '.join(distinct)}" if len(distinct) > 1 else ""
