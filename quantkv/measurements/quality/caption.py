"""How numbers of quality were made, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quantkv.studies.study import Row, protocol_of, requested
from quantkv.wording.numbers import compact, missing
from quantkv.wording.parts import DIGITS, listed

BOS = {"per_window": "BOS in each window", "text": "one BOS before the text"}


def caption(rows: Sequence[Row]) -> str:
    protocol = [protocol_of(row) for row in rows]
    text = listed(p.get("text") for p in protocol)
    digest = listed(str(p["text_sha256"])[:DIGITS] for p in protocol if p.get("text_sha256"))
    parts = [f"Quality: text {text}" + (f" (sha256 {digest})" if digest else "")]
    parts.append(f"prefill {listed(p.get('prefill') for p in protocol)}")
    windows, score = (listed(p.get(name) for p in protocol) for name in ("windows", "score"))
    scored = [row["quality"] for row in rows if row.get("quality")]
    intervals = any(not missing(section.get("kl_low")) for section in scored)
    few = ", too few to rank formats by" if scored and not intervals else ""
    parts.append(f"{windows} {'window' if windows == '1' else 'windows'} of {score} scored tokens{few}")
    if bos := listed(p.get("bos") for p in protocol):
        parts.append(BOS.get(bos, f"BOS {bos}"))
    if preset := listed(p.get("preset") for p in protocol):
        parts.append(f"protocol {preset}")
    against = "KL and ΔNLL against the exact cache" + ", intervals over windows" * intervals
    return "; ".join([", ".join(parts), against, *_bf16_scale(rows)]) + "."


def _bf16_scale(rows: Sequence[Row]) -> list[str]:
    """For a sense of relevance: what the model loses in bfloat16, by context where that differs."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        if (scale := (row.get("quality") or {}).get("scale_bf16_kl")) is not None:
            found.setdefault(compact(scale), []).append(requested(row, "context"))
    said = [f"{scale} at {listed(sorted(set(contexts)))}" for scale, contexts in found.items()]
    return [f"KL of the model in bf16 {', '.join(said)}"] if said else []
