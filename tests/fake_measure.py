"""A measure that measures nothing: instant results, calls recorded, failures on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from quantkv.errors import UnsupportedError
from quantkv.rows.row import build_row
from quantkv.sweep.config import ModelEntry, Sweep, validate
from quantkv.sweep.grid import Cell


def sweep(out: Any, **changes: Any) -> Sweep:
    """Two formats at two contexts, all three kinds."""
    raw: dict[str, Any] = {"schema": 1, "models": ["random-llama"], "formats": ["int8-head", "int4-head"]}
    raw |= {"contexts": [64, 128], "quality": {}, "speed": {}, "memory": {}, "run": {"out": str(out)}}
    return validate(raw | changes)


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
    def __init__(self, measure: FakeMeasure, model: ModelEntry) -> None:
        self.measure, self.model = measure, model

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        tokens = cell.seed if self.measure.seed_matters else 0
        return {"fingerprint": self.model.id, "tokens": tokens if cell.kind == "quality" else None}

    def check(self, cell: Cell) -> None:
        if cell.label == self.measure.unsupported:
            raise UnsupportedError(f"{cell.label} cannot run here")

    def quality(self, cells: tuple[Cell, ...], on_arm: Any, step: Any) -> None:
        self._run(cells, on_arm, {"kl_mean": 0.25, "perplexity": float("nan"), "nll": float("inf")})

    def speed(self, cells: tuple[Cell, ...], on_arm: Any, step: Any) -> None:
        self._run(cells, on_arm, {"decode_ms_median": 5.0, "decode_tokens_per_s": float("inf")})

    def memory(self, cells: tuple[Cell, ...], on_arm: Any, step: Any) -> None:
        self._run(cells, on_arm, {"held_bytes": 1000})

    def _run(self, cells: tuple[Cell, ...], on_arm: Any, section: dict[str, Any]) -> None:
        kind = cells[0].kind
        self.measure.blocks.append((kind, cells[0].context, tuple(cell.label for cell in cells)))
        for cell in cells:
            self.measure.on_cell(cell)
            self.measure.measured.append((kind, cell.label, cell.context))
            effective = {"spec": cell.spec_string, "notes": []} | self.measure.extra
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
        self.measure.closed.append(self.model.id)
