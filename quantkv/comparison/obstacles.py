"""What keeps two rows from being compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantkv.comparison.matching import Row
from quantkv.studies.kind import reported


def obstacle(a: Row, b: Row) -> str | None:
    """Why no number of these two rows may be compared; None where they may."""
    for name, row in (("A", a), ("B", b)):
        if row["status"] != "ok":
            return f"{row['status']} in {name}: {row.get('reason') or 'no reason given'}"
        if _made(row).get("source") == "external":
            return f"measured by others in {name}: such numbers are never ranked"
    kind = a["kind"]
    ours, theirs = ((_made(row).get("metrics") or {}).get(kind) for row in (a, b))
    if ours != theirs and None not in (ours, theirs):
        return f"versions {ours} and {theirs} of the {kind} metrics are not the same number"
    return _of_machine(a, b, kind) if reported(kind).timed else None


def _of_machine(a: Row, b: Row, kind: str) -> str | None:
    ours, theirs = _conditions(a), _conditions(b)
    if None in (*ours.values(), *theirs.values()):
        return f"{kind} without the machine and the threads it was measured on"
    for name, value in ours.items():
        if value != theirs[name]:
            return f"{kind} on another {name}: {value} and {theirs[name]}"
    if "reference" in ((row.get("effective") or {}).get("engine") for row in (a, b)):
        return f"the reference engine makes no {kind} claim"
    return None


def _conditions(row: Row) -> dict[str, Any]:
    """Machine (without its memory, which makes nothing faster), device and threads."""
    made = _made(row)
    machine = made.get("machine")
    if isinstance(machine, Mapping):
        parts = (value for name, value in machine.items() if name != "ram_gb" and value is not None)
        machine = ", ".join(map(str, parts))
    threads = (row.get("protocol") or {}).get("threads") or made.get("threads")
    return {"machine": machine, "device": made.get("device"), "number of threads": threads}


def _made(row: Row) -> Mapping[str, Any]:
    return row.get("provenance") or {}
