"""Result rows: one JSON object per cell, the same whether a sweep or `evaluate` made it."""

import math
from collections.abc import Mapping
from typing import Any

SCHEMA = 1
KINDS = ("quality", "speed", "memory", "retrieval", "generation")
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
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    effective = dict(effective or {})
    effective["notes"] = [*effective.get("notes", []), *_mismatches(requested, effective)]
    row = {"schema": SCHEMA, "kind": kind, "key": key, "status": status, "reason": reason}
    row |= {"requested": dict(requested), "effective": effective, "protocol": dict(protocol)}
    row |= {name: (section if name == kind else None) for name in KINDS}
    return plain(row | {"provenance": dict(provenance)})


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


def plain(value: Any) -> Any:
    """The value as JSON can hold it: numpy scalars unwrapped, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (bool, int, float, str)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
