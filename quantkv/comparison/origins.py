"""Where two sets of rows come from: what differs beside what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkv.comparison.matching import Row

FIELDS = ("quantkv", "commit", "torch", "transformers", "python", "machine", "device", "threads")
OF_THE_MODEL = ("weights", "revision", "fingerprint")


@dataclass(frozen=True, slots=True)
class ProvenanceDifference:
    """A field of provenance that differs in ``pairs`` pairs of rows."""

    field: str
    a: str
    b: str
    pairs: int


def origins(pairs: Iterable[tuple[Row, Row]]) -> list[ProvenanceDifference]:
    """The differences, each told once, fields in a fixed order. A field that one row lacks is none."""
    seen = Counter(difference for pair in pairs for difference in _differences(*pair))
    order = {name: place for place, name in enumerate((*FIELDS, *OF_THE_MODEL))}
    found = [ProvenanceDifference(*difference, pairs=count) for difference, count in seen.items()]
    return sorted(found, key=lambda origin: order[origin.field])


def _differences(a: Row, b: Row) -> Iterator[tuple[str, str, str]]:
    ours, theirs = a.get("provenance") or {}, b.get("provenance") or {}
    for name in (*FIELDS, *OF_THE_MODEL):
        values = [_text(made.get(name)) for made in (ours, theirs)]
        if values[0] != values[1] and "" not in values:
            yield name, values[0], values[1]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(str(part) for part in value.values() if part is not None)
    return "" if value is None else str(value)
