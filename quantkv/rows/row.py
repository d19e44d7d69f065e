"""Result rows: one JSON object per cell, the same whether a sweep or `evaluate` made it."""

import math
from collections.abc import Mapping
from typing import Any

from quantkv.rows.kinds import BUILT_IN, known

SCHEMA = 1
STATUSES = ("ok", "failed", "skipped")
_COMPARED = ("spec", "attn")


def build_row(
    kind: str,
    requested: Mapping[str, Any],
    effective: Mapping[str, Any] | None,
    protocol: Mapping[str, Any],
    section: Mapping[str, Any] | None,
    provenance: Mapping[str, Any],
    *,
    key: str | None = None,
    status: str = "ok",
    reason: str | None = None,
) -> dict[str, Any]:
    """Assemble a row; what was not measured is null, and what ran otherwise than asked is noted."""
    known(kind)
    effective = dict(effective or {})
    effective["notes"] = [*effective.get("notes", []), *_mismatches(requested, effective)]
    row = {"schema": SCHEMA, "kind": kind, "key": key, "status": status, "reason": reason}
    row |= {"requested": dict(requested), "effective": effective, "protocol": dict(protocol)}
    row |= dict.fromkeys(BUILT_IN) | {kind: section}
    return strict_json(row | {"provenance": dict(provenance)})


def _mismatches(requested: Mapping[str, Any], effective: Mapping[str, Any]) -> list[str]:
    if str(effective.get("spec")).startswith(
        ("dynamic", "peer:")
    ):  # these run on stock attention in any case
        return []
    return [
        f"{name}: asked for {requested[name]}, ran {effective[name]}"
        for name in _COMPARED
        if requested.get(name) is not None and effective.get(name) not in (None, requested[name])
    ]


def strict_json(value: Any) -> Any:
    """``value`` with NaN and infinities as null, every number a plain Python one, and every text such as
    UTF-8 can hold: half a character, as in names of files that are no UTF-8, becomes its code."""
    if isinstance(value, Mapping):
        return {strict_json(str(key)): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) or hasattr(value, "item"):
        plain = value if isinstance(value, float) else value.item()
        return None if isinstance(plain, float) and not math.isfinite(plain) else plain
    return str(value)
