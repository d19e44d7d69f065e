"""Rows as a table: one line each, every single number by its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.rows.files import Row, read_rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(slots=True)
class Evaluation:
    """The rows of an evaluation; `to_frame` gives the columns of `quantkv.load_results`."""

    rows: list[Row] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        return to_frame(self.rows)


def load_results(path: str | Path) -> pd.DataFrame:
    """Every row under ``path`` as a DataFrame; columns as in ``to_frame``."""
    return to_frame(read_rows(path))


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line per row: what was asked, what ran, and every single number of its sections by its own name."""
    import pandas as pd

    table = [_flat(row) for row in rows]
    return pd.DataFrame(table, columns=None if table else list(_flat({})))


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    asked, ran = row.get("requested") or {}, row.get("effective") or {}
    made = row.get("provenance") or {}
    flat: dict[str, Any] = {name: row.get(name) for name in ("kind", "status", "reason", "key")}
    flat["model"] = asked.get("model")
    flat |= {name: made.get(name) or asked.get(name) for name in ("revision", "weights")}  # found, else asked
    flat |= {
        name: asked.get(name) for name in ("dtype", "attn", "format", "spec", "context", "batch", "seed")
    }
    flat["prefill"] = (row.get("protocol") or {}).get("prefill")
    flat |= {name: ran.get(name) for name in ("engine", "simulated", "layers_quantized", "layers_total")}
    for section in ("protocol", str(row.get("kind")), "provenance"):
        flat |= {name: value for name, value in _scalars(row.get(section)).items() if name not in flat}
    return flat


def _scalars(section: Mapping[str, Any] | None) -> dict[str, Any]:
    """The single values of a section; the machine's cpu, cores and memory are joined to one word."""
    values = {name: value for name, value in (section or {}).items() if not isinstance(value, dict | list)}
    machine = (section or {}).get("machine")
    if isinstance(machine, Mapping):
        values["machine"] = ", ".join(str(part) for part in machine.values() if part is not None)
    return values
