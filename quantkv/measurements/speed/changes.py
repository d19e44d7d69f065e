"""What is compared in two rows of speed."""

from __future__ import annotations

from collections.abc import Iterator

from quantkv.studies.changes import Change, single, with_interval
from quantkv.studies.intervals import unpaired_factor
from quantkv.studies.pairs import Row, estimate
from quantkv.studies.study import is_baseline


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    sa, sb = a["speed"], b["speed"]
    metric = "ratio_to_baseline"
    if not (is_baseline(a) or is_baseline(b)):
        interval = unpaired_factor(*(estimate(metric, section, "ratio") for section in (sa, sb)))
        how = "unpaired rounds, each beside its own baseline" + (": no interval" if None in interval else "")
        yield with_interval(metric, "×", (sa.get(metric), sb.get(metric)), interval, how, factor=True)
    for name, unit in (("decode_ms_median", "ms"), ("prefill_tokens_per_s", "tokens/s")):
        yield single(name, unit, sa.get(name), sb.get(name), factor=True)
