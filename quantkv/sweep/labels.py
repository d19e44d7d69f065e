"""What a sweep calls its formats now: rows keep the names they were measured under, and are found again by
what was measured, so a report takes the names from the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quantkv.arms.arm import BASELINE
from quantkv.rows.axes import formats
from quantkv.rows.files import Row
from quantkv.sweep.config import Sweep


def current_names(rows: Iterable[Row], sweep: Sweep) -> list[Row]:
    """Rows of the sweep under its current names; where a spec has several, a row keeps its own of them."""
    names: dict[str, list[str]] = {}
    limits = (getattr(sweep.section(kind), "formats", None) for kind in sweep.kinds)
    for only in (None, *filter(None, limits)):
        for label, spec in formats(sweep, only):
            names.setdefault(BASELINE if spec is None else str(spec), []).append(label)
    return [_called(row, names) for row in rows]


def _called(row: Row, names: Mapping[str, list[str]]) -> Row:
    asked: dict[str, Any] = row["requested"]
    known = names.get(str(asked.get("spec")), [])
    if not known or asked["format"] in known:
        return row
    return row | {"requested": asked | {"format": known[0]}}
