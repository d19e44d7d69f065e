"""The grid: model x format x policy x context x batch x seed, as the cells of each kind of measurement.

A cell holds what was asked. Its key, the hash of everything that determines the number, needs to know the
loaded model and the text too, so it is made later from the cell and a mapping of those facts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkv.arms.formats import BASELINE, FormatEntry
from quantkv.peers.peer import Peer
from quantkv.spec.specs import CacheSpec
from quantkv.sweep.config import ModelEntry, Sweep

BEHAVIOUR = ("retrieval", "generation")
Arm = CacheSpec | Peer | None
MEMORY_STEPS = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One number to make, in the words of the sweep file; ``spec`` None is the ``DynamicCache`` arm. Two are
    equal only if they are the same object: a sweep has each once, and keeps what it knows of them by them."""

    kind: str
    model: ModelEntry
    label: str
    spec: Arm
    context: int
    batch: int = 1
    seed: int = 0
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec_string(self) -> str:
        return BASELINE if self.spec is None else str(self.spec)

    @property
    def prefill(self) -> str:
        return str(self.protocol.get("prefill", "exact"))

    @property
    def part(self) -> str:
        """Which task of retrieval, or which mode of generation; none for other kinds."""
        return str(self.protocol.get("task") or self.protocol.get("mode") or "")

    @property
    def title(self) -> str:
        parts = [f"{self.kind}  {self.label}", f"context {self.context}"]
        parts += [f"batch {self.batch}"] if self.batch != 1 else []
        parts += [f"prefill {self.prefill}"] if self.prefill != "exact" else []
        parts += [self.part] if self.part else []
        return ", ".join(parts)

    def requested(self) -> dict[str, Any]:
        """The ``requested`` section of a row; the baseline always runs on sdpa."""
        model = self.model
        asked: dict[str, Any] = {"model": model.id, "revision": model.revision, "dtype": model.dtype}
        asked |= {"attn": "sdpa" if self.spec is None else model.attn}
        asked |= {"format": self.label, "spec": self.spec_string, "context": self.context}
        return asked | {"batch": self.batch, "seed": self.seed}

    def key(self, facts: Mapping[str, Any]) -> str:
        """SHA-256 over what was asked and ``facts``."""
        text = json.dumps(self.keyed(facts), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def keyed(self, facts: Mapping[str, Any]) -> list[Any]:
        """What the key is made of. Names decide nothing: two labels of one spec are one cell; model, text and
        threads enter as the fingerprint, tokens and count that ``facts`` holds."""
        asked = self.requested()
        kept = {name: asked[name] for name in ("dtype", "attn", "spec", "context", "batch")}
        protocol = {name: value for name, value in self.protocol.items() if name not in ("text", "threads")}
        return [self.kind, kept, protocol, dict(facts)]


@dataclass(frozen=True)
class Block:
    """Cells that share a prefill and a reference, a baseline, or a turn; missing ones are run together."""

    cells: tuple[Cell, ...]

    @property
    def head(self) -> Cell:
        return self.cells[0]

    @property
    def kind(self) -> str:
        return self.head.kind


def expand(sweep: Sweep) -> list[Cell]:
    """Every cell of the sweep once, model by model, kind by kind."""
    makers = {"quality": _quality, "speed": _speed, "memory": _memory}
    makers |= {"retrieval": _retrieval, "generation": _generation}
    cells: list[Cell] = []
    for model, kind in itertools.product(sweep.models, sweep.kinds):
        cells += _distinct(makers[kind](sweep, model))
    return cells


def blocks(cells: Iterable[Cell]) -> list[Block]:
    """Cells grouped by what they share, in order of first appearance."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell), []).append(cell)
    return [Block(tuple(group)) for group in groups.values()]


def formats(sweep: Sweep, only: Iterable[str] | None = None) -> list[tuple[str, Arm]]:
    """Each format (or ``only`` some) under each policy, without those that a policy cannot change."""
    policy = sweep.policy
    policies = list(itertools.product(policy.sinks, policy.recent, policy.flush))
    found: dict[str, tuple[str, Arm]] = {}
    for entry in sweep.formats if only is None else [e for e in sweep.formats if e.label in only]:
        specs = {str(spec): spec for spec in (entry.with_policy(*values) for values in policies)}
        for text, spec in specs.items():
            label = entry.label if len(specs) == 1 else _variant_label(entry, spec)
            found.setdefault(text, (label, spec))
    return list(found.values())


def _variant_label(entry: FormatEntry, spec: Arm) -> str:
    """Which policy of the axis this is: the canonical string says it, a name of one's own gets it added."""
    spec = spec.on_top if isinstance(spec, Peer) else spec
    assert spec is not None, "an arm without a policy has no variants"
    if entry.peer is None and entry.spec is None and not entry.layers:
        return str(spec)
    return f"{entry.label}+s{spec.sinks}+r{spec.key.recent}+f{spec.key.flush}"


def _quality(sweep: Sweep, model: ModelEntry) -> Iterable[Cell]:
    assert sweep.quality is not None
    text, protocol = sweep.quality.text, sweep.quality.protocol
    seeds = sweep.seeds if protocol.whole is None else sweep.seeds[:1]  # whole windows leave nothing to pick
    for prefill, seed, context in itertools.product(protocol.prefill, seeds, sweep.contexts_of_quality()):
        fixed = {"text": text.label} | protocol.with_prefill(prefill).row()
        for label, spec in formats(sweep):
            place: dict[str, Any] = {"model": model, "context": context, "seed": seed}
            yield Cell(kind="quality", label=label, spec=spec, protocol=fixed, **place)


def _retrieval(sweep: Sweep, model: ModelEntry) -> Iterable[Cell]:
    assert sweep.retrieval is not None
    protocol = sweep.retrieval.model_dump(mode="json", include={"samples", "depths", "tail"})
    text = sweep.retrieval.text.label
    for task in sweep.retrieval.tasks:
        yield from _packed(sweep, model, "retrieval", {"text": text, "task": task, **protocol})


def _generation(sweep: Sweep, model: ModelEntry) -> Iterable[Cell]:
    assert sweep.generation is not None
    for mode in sweep.generation.mode:
        yield from _packed(sweep, model, "generation", sweep.generation.protocol(mode))


def _packed(sweep: Sweep, model: ModelEntry, kind: str, protocol: dict[str, Any]) -> Iterable[Cell]:
    """Every format that is a packed cache of ours: what these kinds run; the exact one is in every row."""
    specs = [(label, spec) for label, spec in formats(sweep) if isinstance(spec, CacheSpec)]
    for seed, context, (label, spec) in itertools.product(sweep.seeds, sweep.contexts, specs):
        place: dict[str, Any] = {"model": model, "context": context, "seed": seed}
        yield Cell(kind=kind, label=label, spec=spec, protocol=protocol, **place)


def _speed(sweep: Sweep, model: ModelEntry) -> Iterable[Cell]:
    assert sweep.speed is not None
    protocol = sweep.speed.model_dump(exclude={"formats"})
    return _arms(sweep, model, "speed", protocol, formats(sweep, sweep.speed.formats))


def _memory(sweep: Sweep, model: ModelEntry) -> Iterable[Cell]:
    assert sweep.memory is not None
    protocol = sweep.memory.model_dump(mode="json", exclude={"formats", "workers"}) | {"steps": MEMORY_STEPS}
    return _arms(sweep, model, "memory", protocol, formats(sweep, sweep.memory.formats))


def _arms(
    sweep: Sweep, model: ModelEntry, kind: str, protocol: dict[str, Any], wanted: list[tuple[str, Arm]]
) -> Iterable[Cell]:
    """``DynamicCache`` and every format; a seed changes neither bytes nor time, so all seeds share a cell."""
    arms: list[tuple[str, Arm]] = [(BASELINE, None), *wanted]
    for context, batch, (label, spec) in itertools.product(sweep.contexts, sweep.batch_sizes, arms):
        place: dict[str, Any] = {"model": model, "context": context, "batch": batch, "seed": sweep.seeds[0]}
        yield Cell(kind=kind, label=label, spec=spec, protocol=protocol, **place)


def _distinct(cells: Iterable[Cell]) -> list[Cell]:
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(
            json.dumps([cell.requested() | {"format": ""}, dict(cell.protocol)], sort_keys=True), cell
        )
    return list(found.values())


def _group(cell: Cell) -> Any:
    return (
        cell.kind,
        cell.model.model_dump_json(),
        cell.context,
        cell.batch,
        cell.seed,
        cell.prefill,
        cell.part,
    )
