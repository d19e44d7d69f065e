"""What must be said about single rows: how bad they are, what was flagged, why a cell has no number.

A bad quality row is marked at its name and in the notes. Flags on times and sizes are gathered into remarks
below the table, each said once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantkv.studies.kind import studied
from quantkv.studies.study import CAUTION_KL, FLAG_SEPARATOR, JUDGE, UNFIT_KL
from quantkv.wording.numbers import missing

Record = Mapping[str, Any]

VERDICT_MARKS = {"unfit": "✗", "caution": "!", "flagged": "?"}
VERDICT_WORDS = {"unfit": f"UNFIT: KL ≥ {UNFIT_KL:g}", "caution": f"caution: KL ≥ {CAUTION_KL:g}"}
QUALITY = f"{JUDGE}: "
MARKED_ELSEWHERE = "speed: reference engine"
LISTED = 6
REASON_LENGTH = 110


def notes(record: Record) -> str:
    """Verdict, quality flags and failures, the most important first."""
    return "; ".join(filter(None, (quality_notes(record), *failures(record))))


def quality_notes(record: Record) -> str:
    """The verdict and the flags that say more than it does."""
    return "; ".join(filter(None, (VERDICT_WORDS.get(record["verdict"], ""), *quality_flags(record))))


def quality_flags(record: Record) -> list[str]:
    """Without those that only repeat the verdict."""
    flags = [flag.removeprefix(QUALITY) for flag in flags_of(record) if flag.startswith(QUALITY)]
    return [flag for flag in flags if record["verdict"] not in VERDICT_WORDS or not flag.startswith("KL ")]


def failures(record: Record) -> list[str]:
    """``memory failed: out of memory`` for each kind of cell without numbers; long reasons are cut."""
    found = []
    for kind in studied():
        status, reason = record[f"{kind}_status"], record[f"{kind}_reason"]
        if not missing(status) and status != "ok":
            found.append(f"{kind} {status}" + ("" if missing(reason) else f": {_shortened(str(reason))}"))
    return found


def remarks(
    records: Sequence[Record], *, with_failures: bool = False, with_quality: bool = False
) -> list[str]:
    """Flags of speed and memory cells, and those of quality and failures if asked for, each with the rows it
    holds for."""
    rows: dict[str, list[str]] = {}
    for record in records:
        flags = quality_flags(record) if with_quality else []
        flags += [flag for flag in flags_of(record) if not flag.startswith((QUALITY, MARKED_ELSEWHERE))]
        for flag in (failures(record) if with_failures else []) + flags:
            rows.setdefault(flag, []).append(f"{record['label']} at {int(record['context'])}")
    return [
        f"{flag} ({', '.join(where) if len(where) <= LISTED else f'{len(where)} rows'})"
        for flag, where in rows.items()
    ]


def flags_of(record: Record) -> list[str]:
    return str(record["flags"]).split(FLAG_SEPARATOR) if record["flags"] else []


def _shortened(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 1].rstrip() + "…"
