"""The axes of a sweep, which all kinds of measurement share, and the cells that they span."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from quantkv.arms.arm import BASELINE, Arm
from quantkv.arms.formats import FormatEntry, imported_files
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
        """The settings of a kind, a ``KindSettings``; None where it is not measured."""
        return getattr(self, kind, None)

    @property
    def workers(self) -> dict[str, int]:
        """How many cells of a kind run at a time."""
        return {kind: getattr(self.section(kind), "workers", 1) for kind in self.kinds}


class KindSettings(Section, ABC):
    """The section of the kind named `kind` in a sweep file: what is asked of it, and the cells of that."""

    kind: ClassVar[str]

    @abstractmethod
    def cells(self, sweep: Axes, model: ModelEntry) -> Iterable[Cell]:
        """The cells of one model; what is asked in several ways comes several times."""

    def check(self, sweep: Axes) -> None:
        """Raise QuantKVError for what is wrong beside other settings of the sweep, such as the contexts."""

    def tokens_after(self, sweep: Axes) -> int:
        """How many tokens are run after the largest context."""
        return 0


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


class PackedSettings(KindSettings):
    """The section of a kind that runs packed caches of ours, and nothing else."""

    def packed_cells(self, sweep: Axes, model: ModelEntry, protocol: Mapping[str, Any]) -> Iterator[Cell]:
        """A cell for every such format, at every context and seed."""
        specs = [(label, spec) for label, spec in formats(sweep) if isinstance(spec, CacheSpec)]
        for seed, context, (label, spec) in itertools.product(sweep.seeds, sweep.contexts, specs):
            asked: dict[str, Any] = {"model": model, "label": label, "spec": spec, "protocol": protocol}
            yield Cell(kind=self.kind, context=context, seed=seed, **asked)

    def check(self, sweep: Axes) -> None:
        """Raise where there is none to run."""
        if not any(isinstance(entry.with_policy(), CacheSpec) for entry in sweep.formats):
            raise QuantKVError(
                f"{self.kind} runs packed formats only: give one beside the others, such as int4-head"
            )


class MachineSettings(KindSettings):
    """The section of a kind of the machine; ``formats`` limits it to some of the sweep's formats."""

    if TYPE_CHECKING:  # a field of each section, which stands behind those of its own
        formats: OneOrMore[str] | None

    def machine_cells(self, sweep: Axes, model: ModelEntry, protocol: Mapping[str, Any]) -> Iterator[Cell]:
        """``DynamicCache`` and every format asked for, at every context and batch size; a seed changes
        neither bytes nor time, so all seeds share a cell."""
        arms: list[tuple[str, Arm]] = [(BASELINE, None), *formats(sweep, self.formats)]
        for context, batch, (label, spec) in itertools.product(sweep.contexts, sweep.batch_sizes, arms):
            asked: dict[str, Any] = {"model": model, "label": label, "spec": spec, "protocol": protocol}
            yield Cell(kind=self.kind, context=context, batch=batch, seed=sweep.seeds[0], **asked)

    def check(self, sweep: Axes) -> None:
        """Raise where a format is named that the sweep has not."""
        names = [entry.label for entry in sweep.formats]
        unknown = next((name for name in self.formats or () if name not in names), None)
        if unknown is not None:
            raise QuantKVError(f"{self.kind}.formats: '{unknown}' is not among formats: {', '.join(names)}")
