"""`evaluate`: the measurements of a sweep on a model that is already loaded, as rows of the same schema."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quantkv.arms.arm import Format, Result, failure, format_name, parse_format, spec_text
from quantkv.data import Text, load_text, tokenize
from quantkv.errors import QuantKVError
from quantkv.instruments.arguments import list_of_counts, list_of_names
from quantkv.instruments.windows import check_counts
from quantkv.measurements.memory.run import PHASES, WorkerError, memory_cell
from quantkv.measurements.quality.protocols import Protocol, make_protocol
from quantkv.measurements.quality.run import quality_block
from quantkv.measurements.speed.run import speed_block
from quantkv.models import model_identity
from quantkv.peers.peer import Peer
from quantkv.peers.versions import versions
from quantkv.rows.kinds import known
from quantkv.rows.provenance import Clock, provenance
from quantkv.rows.row import build_row

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("quality", "speed", "memory")
MEMORY_STEPS = 32


@dataclass(slots=True)
class Evaluation:
    """The rows of an evaluation; `to_frame` gives the columns of `quantkv.load_results`."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        from quantkv.rows.files import to_frame

        return to_frame(self.rows)


def evaluate(
    model: Any,
    tok: Any,
    formats: Iterable[Format] | Mapping[str, Format],
    *,
    text: str | Text | dict[str, Any] = "python-docs",
    contexts: Sequence[int],
    windows: int | None = None,
    score: int | None = None,
    prefill: str | None = None,
    protocol: str | Mapping[str, Any] | Protocol | None = None,
    scale_bf16: bool | None = None,
    seed: int = 0,
    kinds: Sequence[str] = ("quality",),
    batch: int = 1,
    rounds: int = 10,
    block: int = 8,
    threads: int | None = None,
) -> Evaluation:
    """Measure formats (names, specs, or functions `x -> x_hat`) on a loaded model at every context.

    `formats` may be a mapping when the names of tables matter. `protocol`, that of quality, is a preset's
    name or its settings: 8 windows of 128 scored tokens unless said otherwise. Kinds are quality, speed and
    memory; memory loads the model again in processes of its own, so it needs one that `load_model` loaded. An
    arm that fails gives a row with its reason and a warning.
    """
    kinds = list_of_names("kinds", kinds, KINDS)
    check_counts(batch=batch)
    changes = {"windows": windows, "score": score, "prefill": prefill, "scale_bf16": scale_bf16}
    settings = make_protocol(protocol, **changes)
    loaded = text if isinstance(text, Text) else load_text(text)
    contexts = list_of_counts("contexts", contexts)
    study = Study(model, tok, labelled(formats), loaded, tokenize(loaded, tok), seed, batch)
    if "quality" in kinds:
        study.quality(settings.contexts(contexts, alone=set(kinds) == {"quality"}), settings)
    for context in contexts:
        if "speed" in kinds:
            study.speed(context, rounds, block, threads)
        if "memory" in kinds:
            study.memory(context, threads)
    return Evaluation(study.rows)


def labelled(formats: Iterable[Format] | Mapping[str, Format]) -> dict[str, Format]:
    """Formats by the name they carry in tables, wrong ones found before anything runs."""
    if isinstance(formats, Mapping):
        items = list(formats.items())
    else:
        listed = isinstance(formats, Iterable) and not isinstance(formats, str)
        items = [(format_name(given), given) for given in formats] if listed else []
    if not items:
        raise QuantKVError(f"formats must be a list, such as ['int4-head', 'kivi-2'], not {formats!r}")
    labels = [label for label, _ in items]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise QuantKVError(f"two formats are called {twice!r}; give a mapping of names to formats")
    return {label: parse_format(given) for label, given in items}


class Study:
    """One model, one text, some formats: measures kinds of numbers and keeps their rows."""

    def __init__(
        self, model: Any, tok: Any, arms: dict[str, Format], text: Text, ids: Tensor, seed: int, batch: int
    ) -> None:
        self.model, self.tok, self.arms, self.text, self.ids = model, tok, arms, text, ids
        self.seed, self.batch = seed, batch
        self.identity = model_identity(model)
        self.rows: list[dict[str, Any]] = []

    def quality(self, contexts: Sequence[int], settings: Protocol) -> None:
        plan = settings.plan(self.ids, self.tok, span=max(contexts), seed=self.seed)
        protocol: Result = {"text": self.text.name, "text_sha256": self.text.sha256, "span": max(contexts)}
        protocol |= {**settings.row(), "windows": len(plan.starts), "bos": settings.bos_found(self.tok)}
        for context in contexts:
            quality_block(
                self.model,
                plan.at(context),
                self.arms,
                context=context,
                protocol=settings,
                starts=plan.starts,
                seed=self.seed,
                on_arm=self.adder("quality", context, protocol),
            )

    def speed(self, context: int, rounds: int, block: int, threads: int | None) -> None:
        protocol = {
            "baseline": "dynamic",
            "rounds": rounds,
            "block": block,
            "fill": "prefill",
            "threads": threads,
        }
        speed_block(
            self.model,
            self.arms,
            context=context,
            ids=self.ids,
            batch=self.batch,
            rounds=rounds,
            block=block,
            threads=threads,
            seed=self.seed,
            on_arm=self.adder("speed", context, protocol),
        )

    def memory(self, context: int, threads: int | None) -> None:
        if not hasattr(self.model, "_quantkv_source"):
            raise QuantKVError(
                "memory needs a model that quantkv.load_model loaded: a worker must load it again"
            )
        name = {"name": self.identity["model"], "dtype": str(self.model.dtype).removeprefix("torch.")}
        add = self.adder("memory", context, {"isolate": "process", "phases": list(PHASES)})
        for label, arm in self.arms.items():
            clock = Clock()
            options: Result = {
                "context": context,
                "batch": self.batch,
                "steps": MEMORY_STEPS,
                "ids": self.ids,
            }
            try:
                sections = memory_cell(name, arm, **options, threads=threads)
                add(label, {"status": "ok", "reason": None, "seconds": clock.seconds, **sections})
            except (QuantKVError, WorkerError) as error:
                add(label, failure("memory", error, clock.seconds))

    def adder(self, kind: str, context: int, protocol: Result) -> Any:
        """What `on_arm` does: turn a result into a row."""
        clock = Clock()

        def add(label: str, result: Result) -> None:
            if result["status"] != "ok":
                warnings.warn(f"{kind} of {label} at {context}: {result['reason']}", stacklevel=4)
            requested = self._requested(label, context)
            made = provenance(self.model.device, clock) | {"seconds": round(result["seconds"], 3)}
            made |= {name: self.identity[name] for name in ("weights", "revision", "fingerprint")}
            arm = self.arms[label]
            made |= {"peer": versions(arm)} if isinstance(arm, Peer) else {}
            key = _key(kind, requested, protocol, self.identity["fingerprint"])
            outcome = {"key": key, "status": result["status"], "reason": result["reason"]}
            self.rows.append(
                build_row(kind, requested, result["effective"], protocol, result[kind], made, **outcome)
            )

        return add

    def _requested(self, label: str, context: int) -> Result:
        requested: Result = {name: self.identity[name] for name in ("model", "revision")}
        requested |= {"dtype": str(self.model.dtype).removeprefix("torch."), "attn": "quantkv"}
        requested |= {"format": label, "spec": spec_text(self.arms[label]), "context": context}
        return requested | {"batch": self.batch, "seed": self.seed}


def _key(kind: str, requested: Result, protocol: Result, fingerprint: str | None) -> str:
    content = json.dumps([kind, known(kind).version, requested, protocol, fingerprint], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
