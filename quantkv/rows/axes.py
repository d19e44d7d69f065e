"""The axes of a sweep, which all kinds of measurement share, and the cells that they span."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from quantkv.arms.arm import BASELINE, Arm
from quantkv.arms.formats import FormatEntry
from quantkv.arms.paths import imported_files
from quantkv.errors import QuantKVError
from quantkv.peers.peer import Peer
from quantkv.plugins import ImportedFile, imported
from quantkv.rows.cell import Cell
from quantkv.rows.kinds import measured
from quantkv.rows.settings import ModelEntry, OneOrMore, Policy, Positive, Section, Seed, as_list
from quantkv.spec.specs import CacheSpec


class Axes(Section):
    """``import`` names Python files that register codecs, policies or kinds of measurement; it comes before
    the formats, which may name them."""

    version: Literal[1] = Field(alias="schema")
    imports: Annotated[tuple[ImportedFile, ...], BeforeValidator(imported_files)] = Field(
        default_factory=imported, alias="import"
    )
    models: OneOrMore[ModelEntry]
    formats: Annotated[tuple[FormatEntry, ...], BeforeValidator(as_list), Field(min_length=1)]
    policy: Policy = Policy()
    contexts: OneOrMore[Positive]
    batch_sizes: OneOrMore[Positive] = (1,)
    seeds: OneOrMore[Seed] = (0,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is measured, in that order."""
        return tuple(kind for kind in measured() if self.section(kind) is not None)

    def section(self, kind: str) -> Any:
        """The settings of a kind, None where it is not measured."""
        return getattr(self, kind, None)

    @property
    def workers(self) -> dict[str, int]:
        """How many cells of a kind run at a time."""
        return {kind: getattr(self.section(kind), "workers", 1) for kind in self.kinds}


def formats(sweep: Axes, only: Iterable[str] | None = None) -> list[tuple[str, Arm]]:
    """Each format (or ``only`` some) under each policy, without those that a policy cannot change."""
    policy = sweep.policy
    policies = list(itertools.product(policy.sinks, policy.recent, policy.flush))
    found: dict[str, tuple[str, Arm]] = {}
    for entry in sweep.formats if only is None else [e for e in sweep.formats if e.label in only]:
        specs = {str(spec): spec for spec in (entry.with_policy(*values) for values in policies)}
        for text, spec in specs.items():
            label = entry.label if len(specs) == 1 else _variant_label(entry, spec)
            found.setdefault(entry.known_by(text), (label, spec))
    return list(found.values())


def _variant_label(entry: FormatEntry, spec: Arm) -> str:
    """Which policy of the axis this is: the canonical string says it, a name of one's own gets it added."""
    spec = spec.on_top if isinstance(spec, Peer) else spec
    assert isinstance(spec, CacheSpec), "an arm without a policy has no variants"
    if entry.peer is None and entry.spec is None and not entry.layers:
        return str(spec)
    return f"{entry.label}+s{spec.sinks}+r{spec.key.recent}+f{spec.key.flush}"


def packed_cells(sweep: Axes, model: ModelEntry, kind: str, protocol: Mapping[str, Any]) -> Iterator[Cell]:
    """A cell for every format that is a packed cache of ours, at every context and seed."""
    specs = [(label, spec) for label, spec in formats(sweep) if isinstance(spec, CacheSpec)]
    for seed, context, (label, spec) in itertools.product(sweep.seeds, sweep.contexts, specs):
        place: dict[str, Any] = {"model": model, "context": context, "seed": seed}
        yield Cell(kind=kind, label=label, spec=spec, protocol=protocol, **place)


def machine_cells(sweep: Axes, model: ModelEntry, kind: str, protocol: Mapping[str, Any]) -> Iterator[Cell]:
    """``DynamicCache`` and every format that the kind's section asks for, at every context and batch size; a
    seed changes neither bytes nor time, so all seeds share a cell."""
    arms: list[tuple[str, Arm]] = [(BASELINE, None), *formats(sweep, sweep.section(kind).formats)]
    for context, batch, (label, spec) in itertools.product(sweep.contexts, sweep.batch_sizes, arms):
        place: dict[str, Any] = {"model": model, "context": context, "batch": batch, "seed": sweep.seeds[0]}
        yield Cell(kind=kind, label=label, spec=spec, protocol=protocol, **place)


def check_packed_formats(sweep: Axes, kind: str) -> None:
    """Raise where a kind that runs packed caches of ours has none to run."""
    if not any(isinstance(entry.with_policy(), CacheSpec) for entry in sweep.formats):
        raise QuantKVError(f"{kind} runs packed formats only: give one beside the others, such as int4-head")


def check_named_formats(sweep: Axes, kind: str) -> None:
    """Raise where a kind is limited to a format that the sweep has not."""
    names = [entry.label for entry in sweep.formats]
    unknown = next((name for name in sweep.section(kind).formats or () if name not in names), None)
    if unknown is not None:
        raise QuantKVError(f"{kind}.formats: '{unknown}' is not among formats: {', '.join(names)}")
