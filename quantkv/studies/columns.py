"""The columns of the table in which kinds meet, the same in every place, and which records may be best."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from quantkv.drawing.style import BASELINE
from quantkv.studies.column import GROUPS, Column, Record
from quantkv.studies.kind import reported, studied
from quantkv.wording.numbers import DASH, missing


@cache
def _columns(kinds: Sequence[str]) -> tuple[Column, ...]:
    found = [column for kind in kinds for column in reported(kind).columns]
    return tuple(sorted(found, key=lambda column: GROUPS.index(column.group)))


def columns() -> tuple[Column, ...]:
    """All that any kind has."""
    return _columns(studied())


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
