"""A measure that measures nothing: instant results, calls recorded, failures on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quantkv.errors import UnsupportedError
from quantkv.rows.cell import Cell
from quantkv.rows.row import build_row
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep, validate


def sweep(out: Any, **changes: Any) -> Sweep:
    """Two formats at two contexts, all three kinds."""
    raw: dict[str, Any] = {"schema": 1, "models": ["random-llama"], "formats": ["int8-head", "int4-head"]}
    raw |= {"contexts": [64, 128], "quality": {}, "speed": {}, "memory": {}, "run": {"out": str(out)}}
    return validate(raw | changes)


SECTIONS: dict[str, dict[str, Any]] = {
    "quality": {"kl_mean": 0.25, "perplexity": float("nan"), "nll": float("inf")},
    "speed": {"decode_ms_median": 5.0, "decode_tokens_per_s": float("inf")},
    "memory": {"held_bytes": 1000},
}


class FakeMeasure:
    """``on_cell(cell)`` runs before each result and may raise; ``measured`` and ``blocks`` tell what ran."""

    def __init__(self, on_cell: Callable[[Cell], None] = lambda cell: None, *, unsupported: str = "") -> None:
        self.on_cell, self.unsupported = on_cell, unsupported
        self.measured: list[tuple[str, str, int]] = []
        self.blocks: list[tuple[str, int, tuple[str, ...]]] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.extra: dict[str, Any] = {}
        self.seed_matters = True

    def preflight(self, sweep: Sweep) -> None: ...

    def open(self, model: ModelEntry, sweep: Sweep) -> FakeSession:
        self.opened.append(model.id)
        return FakeSession(self, model)


class FakeSession:
    def __init__(self, fake: FakeMeasure, model: ModelEntry) -> None:
        self.fake, self.model = fake, model

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        tokens = cell.seed if self.fake.seed_matters else 0
        return {"fingerprint": self.model.id, "tokens": tokens if cell.kind == "quality" else None}

    def check(self, cell: Cell) -> None:
        if cell.label == self.fake.unsupported:
            raise UnsupportedError(f"{cell.label} cannot run here")

    def measure(self, cells: Sequence[Cell], on_arm: Any, step: Any) -> None:
        self._run(cells, on_arm, SECTIONS[cells[0].kind])

    def _run(self, cells: Sequence[Cell], on_arm: Any, section: dict[str, Any]) -> None:
        kind = cells[0].kind
        self.fake.blocks.append((kind, cells[0].context, tuple(cell.label for cell in cells)))
        for cell in cells:
            self.fake.on_cell(cell)
            self.fake.measured.append((kind, cell.label, cell.context))
            effective = {"spec": cell.spec_string, "notes": []} | self.fake.extra
            result = {"status": "ok", "reason": None, kind: section, "effective": effective, "seconds": 0.5}
            on_arm(cell, result)

    def row(self, cell: Cell, result: Mapping[str, Any], key: str) -> dict[str, Any]:
        made = {"seconds": result.get("seconds"), "started": time.time()}
        made |= {"keyed": cell.keyed(self.facts(cell))}
        outcome = {"key": key, "status": result["status"], "reason": result.get("reason")}
        section = result.get(cell.kind)
        return build_row(
            cell.kind, cell.requested(), result.get("effective"), cell.protocol, section, made, **outcome
        )

    def close(self) -> None:
        self.fake.closed.append(self.model.id)
