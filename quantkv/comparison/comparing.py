"""Two results folders, two rows, or two formats of one folder: what changed from the first to the second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkv.comparison.matching import PLACE, Row, differences, near, obstacle, obstacles, pair_rows
from quantkv.comparison.outcome import Comparison, Pair, place
from quantkv.errors import QuantKVError
from quantkv.rows import kinds
from quantkv.rows.files import read_rows
from quantkv.studies.changes import SAME
from quantkv.studies.kind import reported
from quantkv.wording.suggestions import did_you_mean

Source = str | Path | Iterable[Row] | Any


def compare(a: Source, b: Source | None = None, *, formats: Sequence[str] | None = None) -> Comparison:
    """Compare ``b`` with ``a``: folders, row files, evaluations or lists of rows.

    ``formats`` are two names or short strings: the rows of the first in ``a`` beside those of the second in
    ``b``, which may be left out. Two files are compared whatever they hold, if it is of one kind. Raises
    ``QuantKVError`` where nothing answers the same question.
    """
    if formats is not None and len(formats) != 2:
        raise QuantKVError(f"formats: two of them are compared, got {len(formats)}")
    if b is None and formats is None:
        raise QuantKVError("compare takes two results folders, two row files, or one folder and two formats")
    names, by_format = _names(a, b, formats), formats is None
    ours = _rows(a)
    theirs = ours if b is None else _rows(b)
    if formats is not None:
        ours, theirs = (_of_format(rows, name) for rows, name in zip((ours, theirs), formats))
    if _is_file(a) and _is_file(b):
        pairs, only_a, only_b = _forced(ours, theirs), list[Row](), list[Row]()
    else:
        pairs, only_a, only_b = pair_rows(ours, theirs, by_format=by_format)
    almost = sorted(near(only_a, only_b, by_format=by_format), key=_order)
    apart = [Pair(x, y, [], None, list(obstacles(x, y))) for x, y in almost]
    if not pairs:
        raise QuantKVError(_nothing(names, ours, theirs, apart, by_format))
    made = [_pair(*pair, by_format) for pair in sorted(pairs, key=_order)]
    return Comparison(*names, made, only_a, only_b, apart)


def _order(pair: tuple[Row, Row]) -> tuple[Any, ...]:
    """As a reader looks for them: a kind, a model, a context at a time; formats as they were found."""
    kind, asked = pair[0]["kind"], pair[0]["requested"]
    return kinds.names().index(kind), str(asked.get("model")), asked["context"], asked.get("batch") or 1


def _pair(a: Row, b: Row, by_format: bool) -> Pair:
    why, kind = obstacle(a, b), a["kind"]
    changes = [] if why else [change for change in reported(kind).changes(a, b) if change is not None]
    if a[kind] == b[kind]:  # the same measurement, or one that repeats to the last digit
        changes = [replace(change, verdict=SAME) for change in changes]
    return Pair(a, b, changes, why, list(differences(a, b, by_format=by_format)))


def _rows(source: Source) -> list[Row]:
    if not isinstance(source, str | Path):
        return list(getattr(source, "rows", source))
    if not (rows := read_rows(source)):
        raise QuantKVError(
            f"no results in {source}: it holds no <kind>-<format>-c<context>-….json of a kind known here"
        )
    return list(rows)


def _names(a: Source, b: Source | None, formats: Sequence[str] | None) -> tuple[str, str]:
    named = [str(x) if isinstance(x, str | Path) else word for x, word in ((a, "a"), (b, "b"))]
    if formats is None:
        return named[0], named[1]
    second = named[0] if b is None else named[1]
    return f"{formats[0]} in {named[0]}", f"{formats[1]} in {second}"


def _is_file(source: Source | None) -> bool:
    return isinstance(source, str | Path) and Path(source).is_file()


def _forced(a: list[Row], b: list[Row]) -> list[tuple[Row, Row]]:
    if a[0]["kind"] != b[0]["kind"]:
        raise QuantKVError(f"a {a[0]['kind']} row and a {b[0]['kind']} row have no number in common")
    return [(a[0], b[0])]


def _of_format(rows: Iterable[Row], name: str) -> list[Row]:
    rows = list(rows)
    found = [row for row in rows if name in (row["requested"]["format"], row["requested"].get("spec"))]
    if not found:
        legal = sorted({str(row["requested"]["format"]) for row in rows})
        hint = did_you_mean(name, legal) or f"; there are {', '.join(legal)}"
        raise QuantKVError(f"no rows of format {name!r}{hint}")
    return found


def _nothing(
    names: tuple[str, str], a: Sequence[Row], b: Sequence[Row], apart: Sequence[Pair], by_format: bool
) -> str:
    """What the two sets do not share, in the setting where that shows."""
    for name in ("kind", *PLACE, *(["format"] if by_format else [])):
        values = [sorted({str(place(row).get(name)) for row in rows}) for rows in (a, b)]
        if not set(values[0]) & set(values[1]):
            return (
                f"nothing to compare: {names[0]} has {name} {', '.join(values[0])}, "
                f"{names[1]} has {', '.join(values[1])}"
            )
    why = "; ".join(dict.fromkeys(", ".join(pair.differences) for pair in apart))
    shared = f"no row of {names[0]} and {names[1]} shares model, context and protocol"
    return f"nothing to compare: {shared}{': ' if why else ''}{why}"
