"""What is said of times: how they were made, and what changed between two rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quantkv.studies.changes import Change, Row, estimate, single, unpaired_factor, with_interval
from quantkv.wording.parts import listed

FILLS = {"prefill": "by a prefill", "synthetic": "with random keys and values"}
WITHIN = "Contexts are timed one after the other: compare times within a context."


def caption(rows: Sequence[Row]) -> str:
    from quantkv.studies.study import is_baseline, protocol_of, requested

    protocol = [protocol_of(row) for row in rows]
    rounds, block = (listed(p.get(name) for p in protocol) for name in ("rounds", "block"))
    engines = listed((row.get("effective") or {}).get("engine") for row in rows if not is_baseline(row))
    parts = [f"Speed: {rounds} rounds of {block} decode steps interleaved with DynamicCache, medians"]
    parts.append(f"cache filled {listed(FILLS.get(str(p.get('fill')), p.get('fill')) for p in protocol)}")
    threads = listed(_threads(row, asked) for row, asked in zip(rows, protocol))
    parts.append(f"{threads} thread" + ("" if threads == "1" else "s"))
    if engines:
        parts.append(f"engine {engines}")
    several = len({requested(row, "context") for row in rows}) > 1
    return ", ".join(parts) + "." + f" {WITHIN}" * several


def _threads(row: Row, protocol: Row) -> Any:
    return protocol.get("threads") or (row.get("provenance") or {}).get("threads")


def changes(a: Row, b: Row) -> Iterator[Change | None]:
    from quantkv.studies.study import is_baseline

    sa, sb = a["speed"], b["speed"]
    metric = "ratio_to_baseline"
    if not (is_baseline(a) or is_baseline(b)):
        interval = unpaired_factor(*(estimate(metric, section, "ratio") for section in (sa, sb)))
        how = "unpaired rounds, each beside its own baseline" + (": no interval" if None in interval else "")
        yield with_interval(metric, "×", (sa.get(metric), sb.get(metric)), interval, how, factor=True)
    for name, unit in (("decode_ms_median", "ms"), ("prefill_tokens_per_s", "tokens/s")):
        yield single(name, unit, sa.get(name), sb.get(name), factor=True)
