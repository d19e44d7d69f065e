"""What sets studies and rows apart, in words: model, dtype, weights, text, and what else they do not share.

A part is told wherever it has more than one value. Hashes are told only where nothing else tells two things
apart: two dtypes of one model have two fingerprints, which nobody needs to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Parts = Mapping[str, str]
"""By name, as in ``model``, ``fingerprint`` or ``quality.text``."""

SUBJECT = ("model", "revision", "dtype", "fingerprint")
"""Which model a row is of, however it was measured."""
FIRST = (
    "model", "dtype", "revision", "fingerprint", "batch", "citation",
    "text", "prefill", "task", "mode", "quality.text", "quality.prefill",
)  # fmt: skip
PLAIN = ("model", "dtype", "citation", "text")
WORDS = {"fingerprint": "weights"}
HASH = re.compile(r"(sha256:)?[0-9a-f]{40,64}")
DIGITS = 12
LISTED = 4
SEPARATOR = " · "


def subject_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a row that say which model it is of."""
    asked = row.get("requested") or {}
    parts = {name: str(asked.get(name) or "") for name in SUBJECT}
    return parts | {"fingerprint": fingerprint_of(row)}


def asked_of(row: Mapping[str, Any]) -> dict[str, str]:
    """What was asked of a row beside its format, its context and its batch."""
    seed = (row.get("requested") or {}).get("seed")
    own = (row.get("protocol") or {}) | {"seed": seed}
    return subject_of(row) | {name: said(value) for name, value in own.items() if value is not None}


def differing(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of those parts that are not the same in all rows of a kind, in the order of a title."""
    kinds: dict[str, list[Parts]] = {}
    for row in rows:
        kinds.setdefault(str(row.get("kind")), []).append(asked_of(row))
    names = {name for found in kinds.values() for name in told(found)}
    names |= set(told([{name: own[name] for name in SUBJECT} for found in kinds.values() for own in found]))
    return sorted(names, key=_place)


def fingerprint_of(row: Mapping[str, Any]) -> str:
    """Of config and weights; empty where the model was never loaded, or not here."""
    return str((row.get("provenance") or {}).get("fingerprint") or "")


def told(found: Sequence[Parts]) -> list[str]:
    """The names of those parts that not all share, in the order of a title."""
    return sorted({name for names in told_of_each(found) for name in names}, key=_place)


def told_of_each(found: Sequence[Parts]) -> list[list[str]]:
    """The same for each: hashes only where others share all the rest."""
    names = sorted({name for parts in found for name in parts}, key=_place)
    plain = [name for name in names if not _is_hash(found, name) and len(_values(found, name)) > 1]
    alike: dict[tuple[str, ...], list[Parts]] = {}
    for parts in found:
        alike.setdefault(_rest(parts, plain), []).append(parts)
    return [
        [name for name in names if name in plain or len(_values(alike[_rest(parts, plain)], name)) > 1]
        for parts in found
    ]


def _rest(parts: Parts, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(parts.get(name, "") for name in names)


def title(parts: Parts, names: Iterable[str]) -> str:
    """The model, and in words the other parts named."""
    shown = [words(name, parts[name]) for name in dict.fromkeys(("model", *names)) if parts.get(name)]
    return SEPARATOR.join(dict.fromkeys(shown))


def words(name: str, value: str) -> str:
    """``bfloat16``, ``batch 4``, ``prefill chunked``: values that speak for themselves stand alone."""
    own = name.rpartition(".")[2]
    shown = short(value)
    return shown if own in PLAIN else f"{WORDS.get(own, own.replace('_', ' '))} {shown}"


def short(value: str) -> str:
    """Hashes by their first digits."""
    return value.rpartition(":")[2][:DIGITS] if HASH.fullmatch(value) else value


def titles(found: Sequence[Parts]) -> list[str]:
    """A title for each, as short as they allow."""
    return [title(parts, names) for parts, names in zip(found, told_of_each(found))]


def said(value: Any) -> str:
    """A setting as a part: lists and machines in words."""
    if isinstance(value, list):
        return ", ".join(map(said, value))
    if isinstance(value, dict):
        return machine_words(value) or str(value)
    return str(value)


def machine_words(machine: Mapping[str, Any]) -> str:
    ram, cores = machine.get("ram_gb"), machine.get("cores")
    known = [machine.get("gpu"), machine.get("cpu")]
    known += [f"{cores} core" + ("" if cores == 1 else "s")] if cores else []
    known += [f"{ram:.0f} GB"] if isinstance(ram, int | float) else []
    return ", ".join(str(part) for part in known if part)


def _values(found: Iterable[Parts], name: str) -> set[str]:
    return {parts[name] for parts in found if name in parts}


def _is_hash(found: Iterable[Parts], name: str) -> bool:
    return name != "model" and any(HASH.fullmatch(value) for value in _values(found, name))


def _place(name: str) -> tuple[int, str]:
    return FIRST.index(name) if name in FIRST else len(FIRST), name


def text_words(protocol: Mapping[str, Any]) -> str:
    """The text that a protocol names."""
    return f"text {protocol.get('text')} (sha256 {str(protocol.get('text_sha256'))[:DIGITS]})"


def listed(values: Iterable[Any]) -> str:
    """What is there, each said once; of many the first ones."""
    distinct = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    return ", ".join(distinct[:LISTED]) + (", …" if len(distinct) > LISTED else "")
