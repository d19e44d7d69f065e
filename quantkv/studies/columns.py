"""The columns of the table in which kinds meet, the same in every place, and which numbers of them are bold:
the best of comparable formats, and all that cannot be told from it.

Nothing is bold where no interval says how sure that is.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any

from quantkv.drawing.style import BASELINE
from quantkv.studies.column import GROUPS, Column, Record
from quantkv.studies.kind import reported, studied
from quantkv.wording.numbers import DASH, missing

Block = tuple[int, str, list[Record]]
"""Records that are ranked together: their context, what tells them from others of it (if anything), they."""
BITS_BELOW = (4, 6, 8)
"""Formats from one bound to the next, by the bits of a full page, are ranked together."""


def columns() -> tuple[Column, ...]:
    """All that any kind has."""
    found = [column for kind in studied() for column in reported(kind).columns]
    return tuple(sorted(found, key=lambda column: GROUPS.index(column.group)))


def shown_columns(records: Sequence[Record]) -> list[Column]:
    """The columns in which at least one record has something to say."""
    return [column for column in columns() if any(column.text(record) != DASH for record in records)]


def printed_columns(records: Sequence[Record], *, batched: bool) -> list[Column]:
    """The same where there is room for what matters only."""
    return [column for column in shown_columns(records) if batched or not column.of_batches]


def competes(record: Record) -> bool:
    """Raw floats would win every quality, unfit formats every size; a simulated one holds no bytes, and what
    others measured is ranked with nothing."""
    raw = record["label"] == BASELINE or record["label"] in ("fp32", "fp16", "bf16", "exact")
    many_bits = not missing(record["bits_packed"]) and record["bits_packed"] >= 16
    return not (raw or many_bits or record["verdict"] == "unfit" or record["simulated"] or record["citation"])


def rule(columns: Iterable[Column], blocks: Sequence[Block]) -> str:
    """What bold means in a table of these columns, where anything in it is."""
    bold = [column for column in columns if any(best_labels(column, group) for *_, group in blocks)]
    if not bold:
        return ""
    best = ", ".join(dict.fromkeys(column.best for column in bold))
    return (
        "Bold: at each context the best of the quantized formats with comparable bits (of a full page: "
        f"below 4, from 4, from 6, from 8), {best}; with it those whose interval overlaps the best one's or "
        "that print the same. Not ranked: columns without intervals, formats alone in their group, unfit "
        "ones, times of the reference engine."
    )


def best_labels(column: Column, records: Sequence[Record]) -> set[int]:
    """Positions of the bold cells of one column among the records of one context."""
    if not column.best or not _told_apart(records):
        return set()
    groups: dict[int | None, list[int]] = {}
    for index, record in enumerate(records):
        if competes(record) and not missing(column.score(record)):
            groups.setdefault(_group(record), []).append(index)
    return {
        index for members in groups.values() if len(members) > 1 for index in _best(column, records, members)
    }


def _told_apart(records: Sequence[Record]) -> bool:
    """Quality that was scored in too few windows for an interval ranks nothing, not even sizes: which of two
    formats is better for its bits is then unknown."""
    scored = [record for record in records if not missing(record["kl_mean"])]
    return not scored or any(not missing(record["kl_low"]) for record in scored)


def _group(record: Record) -> int | None:
    """Formats that only have a speed or a size, and so no bits, are ranked together."""
    bits = record["bits_packed"]
    return None if missing(bits) else bisect.bisect_right(BITS_BELOW, bits)


def _best(column: Column, records: Sequence[Record], members: Sequence[int]) -> list[int]:
    winner = min(members, key=lambda index: column.score(records[index]) or 0.0)
    best = records[winner]
    if any(map(missing, _ends(column, best))):
        return []
    return [index for index in members if _ties(column, records[index], best)]


def _ties(column: Column, record: Record, best: Record) -> bool:
    if column.text(record) == column.text(best):
        return True
    ends, others = _ends(column, record), _ends(column, best)
    if not ends or any(map(missing, (*ends, *others))):
        return False
    return bool(ends[0] <= others[1] and others[0] <= ends[1])


def _ends(column: Column, record: Record) -> list[Any]:
    return [record[name] for name in column.ends]
