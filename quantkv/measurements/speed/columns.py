"""Times of decoding in the table of formats."""

from __future__ import annotations

from quantkv.studies.column import RATIO, Column, Record, Score, Text, led_by, ratio, reference_mark
from quantkv.wording.numbers import missing, significant

ENDS = ("ratio_low", "ratio_high")
"""Times are compared by the intervals of their ratios, which leave out what all arms share."""


def _time(name: str) -> Text:
    return lambda record: significant(record[name]) + reference_mark(record)


def _claimable(name: str, sign: int = 1) -> Score:
    """Times of the reference engine do not compete."""

    def score(record: Record) -> float | None:
        value = record[name]
        return None if reference_mark(record) or missing(value) else sign * value

    return score


COLUMNS = (
    Column(name="decode", header="decode", unit="ms/token", group="speed", value="decode_ms_median",
           text=led_by("speed", _time("decode_ms_median")), best="shortest time",
           badness=_claimable("decode_ms_median"), ends=ENDS),
    Column(name="ratio", header="decode time", unit=RATIO, group="speed", value="ratio_to_baseline",
           text=ratio("ratio_to_baseline"), best="shortest time", badness=_claimable("ratio_to_baseline"),
           ends=ENDS),
    Column(name="rate", header="decode", unit="tokens/s", group="speed", value="decode_tokens_per_s",
           text=_time("decode_tokens_per_s"), best="most tokens per second",
           badness=_claimable("decode_tokens_per_s", -1), ends=ENDS, of_batches=True),
)  # fmt: skip
