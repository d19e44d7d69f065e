"""Which numbers of a table are bold: the best of comparable formats, and all that cannot be told from it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from quantkv.report.columns import Column, Record, competes
from quantkv.report.numbers import missing

BITS_BELOW = (4, 6, 8)
"""Formats from one bound to the next, by the bits of a full page, are ranked together."""

INTERVALS = {
    "ppl": ("delta_nll_low", "delta_nll_high"),
    "delta": ("delta_nll_low", "delta_nll_high"),
    "kl": ("kl_low", "kl_high"),
    "decode": ("ratio_low", "ratio_high"),
    "ratio": ("ratio_low", "ratio_high"),
    "rate": ("ratio_low", "ratio_high"),
}
"""By column; times are compared by the intervals of their ratios, which leave out what all arms share."""

RULE = (
    "Bold: at each context the best of the quantized formats with comparable bits (of a full page: below 4, "
    "from 4, from 6, from 8), with those whose interval overlaps the best one's or that print the same. "
    "Not ranked: formats alone in their group, unfit ones, times of the reference engine."
)


def best_labels(column: Column, records: Sequence[Record]) -> set[int]:
    """Positions of the bold cells of one column among the records of one context."""
    groups: dict[int | None, list[int]] = {}
    for index, record in enumerate(records):
        if competes(record) and not missing(column.badness(record)):
            groups.setdefault(_group(record), []).append(index)
    return {
        index for members in groups.values() if len(members) > 1 for index in _best(column, records, members)
    }


def _group(record: Record) -> int | None:
    """Formats that only have a speed or a size, and so no bits, are ranked together."""
    bits = record["bits_packed"]
    return None if missing(bits) else bisect.bisect_right(BITS_BELOW, bits)


def _best(column: Column, records: Sequence[Record], members: Sequence[int]) -> list[int]:
    winner = min(members, key=lambda index: column.badness(records[index]) or 0.0)
    best = records[winner]
    return [index for index in members if _ties(column, records[index], best)]


def _ties(column: Column, record: Record, best: Record) -> bool:
    if column.text(record) == column.text(best):
        return True
    ends = [record[name] for name in INTERVALS.get(column.name, ())]
    others = [best[name] for name in INTERVALS.get(column.name, ())]
    if not ends or any(map(missing, (*ends, *others))):
        return False
    return bool(ends[0] <= others[1] and others[0] <= ends[1])
