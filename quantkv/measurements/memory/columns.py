"""Memory in the table of formats."""

from __future__ import annotations

from quantkv.studies.column import Column, Record, led_by, ratio
from quantkv.wording.numbers import DASH, missing, significant

MIB = 2**20


def _memory(record: Record) -> str:
    return DASH if missing(record["held_bytes"]) else significant(record["held_bytes"] / MIB)


COLUMNS = (
    Column(name="memory", header="memory", unit="MiB", group="size", value="held_bytes",
           text=led_by("memory", _memory), best="least memory"),
    Column(name="memory_ratio", header="memory", unit="× 16-bit", group="size", value="ratio_to_16bit",
           text=ratio("ratio_to_16bit"), best="least memory"),
)  # fmt: skip
