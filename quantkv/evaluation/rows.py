"""Result rows: one JSON object per cell, the same whether a sweep or `evaluate` made it."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

SCHEMA = 1
KINDS = ("quality", "speed", "memory")
_IDENTITY = ("kind", "status", "reason", "key")
_REQUESTED = ("model", "revision", "weights", "dtype", "attn", "format", "spec", "context", "batch", "seed")
_EFFECTIVE = ("engine", "simulated", "layers_quantized", "layers_total")
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


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A DataFrame with one line per row: what was asked, what ran, every scalar measured, where it ran."""
    return pd.DataFrame([flatten(row) for row in rows])


def flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row as a flat dict; the scalars of its section keep their own names."""
    requested, effective = row.get("requested") or {}, row.get("effective") or {}
    flat: dict[str, Any] = {name: row.get(name) for name in _IDENTITY}
    flat |= {name: requested.get(name) for name in _REQUESTED}
    flat |= {name: effective.get(name) for name in _EFFECTIVE}
    flat |= {f"effective_{name}": effective.get(name) for name in _COMPARED}
    flat |= _scalars(row.get("protocol") or {}, taken=flat)
    flat |= _scalars(row.get(row["kind"]) or {}, taken=flat)
    flat |= {name: "; ".join(source.get(name) or []) for name, source in _text_lists(row, effective)}
    provenance = dict(row.get("provenance") or {})
    provenance |= provenance.pop("machine", None) or {}
    return flat | _scalars(provenance, taken=flat)


def _text_lists(row: Mapping[str, Any], effective: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [("flags", row.get(row["kind"]) or {}), ("notes", effective)]


def _scalars(section: Mapping[str, Any], *, taken: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in section.items() if not isinstance(value, (dict, list)) and name not in taken
    }
