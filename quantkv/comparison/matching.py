"""Which row of one set answers the same question as which row of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]
Pairs = list[tuple[Row, Row]]

PLACE = ("model", "dtype", "context", "batch", "seed")
ASKED = ("model", "dtype", "attn", "format", "spec", "context", "batch", "seed")
SAMPLE = ("windows", "span")
"""Settings that say which windows are scored, not what is measured: rows that differ in them are compared
unpaired."""
OF_A_MACHINE = ("threads",)


def pair_rows(
    a: Iterable[Row], b: Iterable[Row], *, by_format: bool = True
) -> tuple[Pairs, list[Row], list[Row]]:
    """Pairs in the order of ``a``, and what is left of either. Each row is in one pair at most; rows of the
    very same sample find each other first.

    Weights that go by one name are told apart: formats are compared on the same weights only, and sets of
    rows on the same ones where they share any of a model (else a newer checkpoint is compared with an older).
    """
    a, b = list(a), list(b)
    shared = {_model(row) for row in a if _weights(row)} if not by_format else _shared(a, b)
    there = defaultdict(list)
    for j, row in enumerate(b):
        there[_place(row, by_format)].append(j)
    options = [
        (_distance(row, b[j]), i, j)
        for i, row in enumerate(a)
        for j in there[_place(row, by_format)]
        if _same_protocol(row, b[j]) and (_model(row) not in shared or _same_weights(row, b[j]))
    ]
    partner: dict[int, int] = {}
    for _, i, j in sorted(options):
        if i not in partner and j not in partner.values():
            partner[i] = j
    pairs = [(row, b[partner[i]]) for i, row in enumerate(a) if i in partner]
    only_a = [row for i, row in enumerate(a) if i not in partner]
    taken = set(partner.values())
    return pairs, only_a, [row for j, row in enumerate(b) if j not in taken]


def differences(a: Row, b: Row, *, by_format: bool = True) -> Iterator[str]:
    """Settings in which two rows differ, as ``context 512 → 2048``; those that only one row states are not
    differences, since rows of earlier versions state fewer. ``by_format``: formats should be the same."""
    ours, theirs = _settings(a), _settings(b)
    for name in ours:
        if not by_format and name in ("format", "spec"):
            continue
        if name in theirs and ours[name] != theirs[name]:
            yield f"{name} {_short(ours[name])} → {_short(theirs[name])}"


def near(a: Iterable[Row], b: Iterable[Row], *, by_format: bool = True) -> Pairs:
    """Rows without a partner beside the one of the other set that is most like it: same kind, model, context
    and task, asked for otherwise. Each row is in one pair at most."""
    left, found = list(b), Pairs()
    for row in a:
        like = [other for other in left if _question(row, by_format) == _question(other, by_format)]
        apart = {id(other): len(list(obstacles(row, other))) for other in like}
        like = [other for other in like if apart[id(other)]]
        if like:
            closest = min(like, key=lambda other: apart[id(other)])
            left = [other for other in left if other is not closest]
            found.append((row, closest))
    return found


def obstacles(a: Row, b: Row) -> Iterator[str]:
    """The settings that keep two rows from being a pair, as ``fill prefill → synthetic``."""
    ours, theirs = ({**row["requested"], **_protocol(row)} for row in (a, b))
    for name in (*PLACE, *_decisive(a, b)):
        if str(ours.get(name)) != str(theirs.get(name)):
            yield f"{name} {_short(ours.get(name))} → {_short(theirs.get(name))}"
    if not _same_weights(a, b):
        yield f"fingerprint {_short(_weights(a))} → {_short(_weights(b))}"


def _shared(a: Iterable[Row], b: Iterable[Row]) -> set[tuple[str, str]]:
    """Models of which both sets have rows on the very same weights."""
    ours, theirs = ({(_model(row), _weights(row)) for row in rows} for rows in (a, b))
    return {model for model, weights in ours & theirs if weights}


def _same_weights(a: Row, b: Row) -> bool:
    """False where both rows state their weights' fingerprint, and not the same."""
    return not _weights(a) or not _weights(b) or _weights(a) == _weights(b)


def _weights(row: Row) -> str | None:
    return (row.get("provenance") or {}).get("fingerprint")


def _model(row: Row) -> tuple[str, str]:
    return str(row["requested"].get("model")), str(row["requested"].get("dtype"))


def _question(row: Row, by_format: bool) -> tuple[Any, ...]:
    asked, protocol = row["requested"], _protocol(row)
    names = ("model", "context", "format") if by_format else ("model", "context")
    parts = (str(asked.get(name)) for name in names)
    return row["kind"], *parts, protocol.get("task"), protocol.get("mode")


def _place(row: Row, by_format: bool) -> tuple[Any, ...]:
    asked = row["requested"]
    names = (*PLACE, "format") if by_format else PLACE
    return row["kind"], *(str(asked.get(name)) for name in names)


def _same_protocol(a: Row, b: Row) -> bool:
    ours, theirs = _protocol(a), _protocol(b)
    return all(ours[name] == theirs[name] for name in _decisive(a, b))


def _decisive(a: Row, b: Row) -> list[str]:
    """Settings of the protocol that both rows state and that must be equal in a pair."""
    theirs = _protocol(b)
    names = [name for name in _protocol(a) if name in theirs and name not in (*SAMPLE, *OF_A_MACHINE)]
    by_content = "text_sha256" in names  # the text's name is a path, perhaps
    return [name for name in names if name != "text" or not by_content]


def _distance(a: Row, b: Row) -> int:
    ours, theirs = _protocol(a), _protocol(b)
    return sum(ours.get(name) != theirs.get(name) for name in SAMPLE)


def _settings(row: Row) -> dict[str, Any]:
    asked = row["requested"]
    return {name: asked[name] for name in ASKED if name in asked} | dict(_protocol(row))


def _protocol(row: Row) -> Mapping[str, Any]:
    return row.get("protocol") or {}


def _short(value: Any) -> str:
    """Hashes by their first digits."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else text
