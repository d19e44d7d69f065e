"""Which row of one set answers the same question as which row of another, and what keeps two from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quantkv.studies.kind import reported

Row = Mapping[str, Any]
Pairs = list[tuple[Row, Row]]

PLACE = ("model", "dtype", "context", "batch", "seed")
"""Which cell a row is, its format and its protocol aside."""
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
    shared = _shared(a, b) if by_format else {_model(row) for row in a if _weights(row)}
    there = defaultdict(list)
    for j, row in enumerate(b):
        there[_place(row, PLACE, by_format)].append(j)
    options = [
        (_distance(row, b[j]), i, j)
        for i, row in enumerate(a)
        for j in there[_place(row, PLACE, by_format)]
        if _same_protocol(row, b[j]) and (_model(row) not in shared or _same_weights(row, b[j]))
    ]
    partner: dict[int, int] = {}
    for _, i, j in sorted(options):
        if i not in partner and j not in partner.values():
            partner[i] = j
    pairs = [(row, b[partner[i]]) for i, row in enumerate(a) if i in partner]
    only_a = [row for i, row in enumerate(a) if i not in partner]
    return pairs, only_a, [row for j, row in enumerate(b) if j not in partner.values()]


def differences(a: Row, b: Row, *, by_format: bool = True) -> Iterator[str]:
    """Settings in which two rows differ, as ``context 512 → 2048``; those that only one row states are not
    differences, since rows of earlier versions state fewer. ``by_format``: formats should be the same."""
    asked = [name for name in ASKED if by_format or name not in ("format", "spec")]
    ours, theirs = (
        {name: row["requested"][name] for name in asked if name in row["requested"]} | dict(_protocol(row))
        for row in (a, b)
    )
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            yield _moved(name, ours[name], theirs[name])


def near(a: Iterable[Row], b: Iterable[Row], *, by_format: bool = True) -> Pairs:
    """Rows without a partner beside the one of the other set that is most like it: same kind, model, context
    and task, asked for otherwise. Each row is in one pair at most."""
    left, found = list(b), Pairs()
    for row in a:
        question = _question(row, by_format)
        like = [j for j, other in enumerate(left) if _question(other, by_format) == question]
        apart = {j: len(list(obstacles(row, left[j]))) for j in like}
        if asked_otherwise := [j for j in like if apart[j]]:
            found.append((row, left.pop(min(asked_otherwise, key=apart.__getitem__))))
    return found


def obstacles(a: Row, b: Row) -> Iterator[str]:
    """The settings that keep two rows from being a pair, as ``fill prefill → synthetic``."""
    ours, theirs = ({**row["requested"], **_protocol(row)} for row in (a, b))
    for name in (*PLACE, *_decisive(a, b)):
        if str(ours.get(name)) != str(theirs.get(name)):
            yield _moved(name, ours.get(name), theirs.get(name))
    if not _same_weights(a, b):
        yield _moved("fingerprint", _weights(a), _weights(b))


def _moved(name: str, ours: Any, theirs: Any) -> str:
    return f"{name} {_short(ours)} → {_short(theirs)}"


def _shared(a: Iterable[Row], b: Iterable[Row]) -> set[tuple[str, str]]:
    """Models of which both sets have rows on the very same weights."""
    ours, theirs = ({(_model(row), _weights(row)) for row in rows} for rows in (a, b))
    return {model for model, weights in ours & theirs if weights}


def _same_weights(a: Row, b: Row) -> bool:
    """False where both rows state their weights' fingerprint, and not the same."""
    return not _weights(a) or not _weights(b) or _weights(a) == _weights(b)


def _weights(row: Row) -> str | None:
    return _made(row).get("fingerprint")


def _model(row: Row) -> tuple[str, str]:
    return str(row["requested"].get("model")), str(row["requested"].get("dtype"))


def _place(row: Row, names: Iterable[str], by_format: bool) -> tuple[str, ...]:
    names = (*names, "format") if by_format else names
    return row["kind"], *(str(row["requested"].get(name)) for name in names)


def _question(row: Row, by_format: bool) -> tuple[Any, ...]:
    protocol = _protocol(row)
    return *_place(row, ("model", "context"), by_format), protocol.get("task"), protocol.get("mode")


def _same_protocol(a: Row, b: Row) -> bool:
    return all(_protocol(a)[name] == _protocol(b)[name] for name in _decisive(a, b))


def _decisive(a: Row, b: Row) -> list[str]:
    """Settings of the protocol that both rows state and that must be equal in a pair."""
    theirs = _protocol(b)
    names = [name for name in _protocol(a) if name in theirs and name not in (*SAMPLE, *OF_A_MACHINE)]
    by_content = "text_sha256" in names  # the text's name is a path, perhaps
    return [name for name in names if name != "text" or not by_content]


def _distance(a: Row, b: Row) -> int:
    return sum(_protocol(a).get(name) != _protocol(b).get(name) for name in SAMPLE)


def _protocol(row: Row) -> Mapping[str, Any]:
    return row.get("protocol") or {}


def _made(row: Row) -> Mapping[str, Any]:
    return row.get("provenance") or {}


def _short(value: Any) -> str:
    """Hashes by their first digits."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else text


def obstacle(a: Row, b: Row) -> str | None:
    """Why no number of these two rows may be compared; None where they may."""
    for name, row in (("A", a), ("B", b)):
        if row["status"] != "ok":
            return f"{row['status']} in {name}: {row.get('reason') or 'no reason given'}"
        if _made(row).get("source") == "external":
            return f"measured by others in {name}: such numbers are never ranked"
    kind = a["kind"]
    ours, theirs = ((_made(row).get("metrics") or {}).get(kind) for row in (a, b))
    if ours != theirs and None not in (ours, theirs):
        return f"versions {ours} and {theirs} of the {kind} metrics are not the same number"
    return _of_machine(a, b, kind) if reported(kind).timed else None


def _of_machine(a: Row, b: Row, kind: str) -> str | None:
    ours, theirs = _conditions(a), _conditions(b)
    if None in (*ours.values(), *theirs.values()):
        return f"{kind} without the machine and the threads it was measured on"
    for name, value in ours.items():
        if value != theirs[name]:
            return f"{kind} on another {name}: {value} and {theirs[name]}"
    if "reference" in ((row.get("effective") or {}).get("engine") for row in (a, b)):
        return f"the reference engine makes no {kind} claim"
    return None


def _conditions(row: Row) -> dict[str, Any]:
    """Machine (without its memory, which makes nothing faster), device and threads."""
    made = _made(row)
    machine = made.get("machine")
    if isinstance(machine, Mapping):
        parts = (value for name, value in machine.items() if name != "ram_gb" and value is not None)
        machine = ", ".join(map(str, parts))
    threads = _protocol(row).get("threads") or made.get("threads")
    return {"machine": machine, "device": made.get("device"), "number of threads": threads}
