"""How times were made, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quantkv.studies.study import Row, is_baseline, protocol_of, requested
from quantkv.wording.parts import listed

FILLS = {"prefill": "by a prefill", "synthetic": "with random keys and values"}
WITHIN = "Contexts are timed one after the other: compare times within a context."


def caption(rows: Sequence[Row]) -> str:
    protocol = [protocol_of(row) for row in rows]
    rounds, block = (listed(p.get(name) for p in protocol) for name in ("rounds", "block"))
    engines = listed((row.get("effective") or {}).get("engine") for row in rows if not is_baseline(row))
    parts = [f"Speed: {rounds} rounds of {block} decode steps interleaved with DynamicCache, medians"]
    parts.append(f"cache filled {listed(FILLS.get(str(p.get('fill')), p.get('fill')) for p in protocol)}")
    threads = listed(_threads(row) for row in rows)
    parts.append(f"{threads} thread" + ("" if threads == "1" else "s"))
    if engines:
        parts.append(f"engine {engines}")
    several = len({requested(row, "context") for row in rows}) > 1
    return ", ".join(parts) + "." + f" {WITHIN}" * several


def _threads(row: Row) -> Any:
    return protocol_of(row).get("threads") or (row.get("provenance") or {}).get("threads")
