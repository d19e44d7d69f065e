"""Measuring in this process: one model loaded at a time, memory cells in subprocesses of their own.

A sweep runs this in worker processes (``quantkv.sweep.process``).
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from quantkv.data import Text, load_text, tokenize
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.measurements.memory.run import memory_cell
from quantkv.measurements.quality.protocols import Protocol, WindowPlan
from quantkv.measurements.quality.run import quality_block
from quantkv.measurements.speed.run import speed_block
from quantkv.models import load_model, model_identity
from quantkv.peers.peer import Peer
from quantkv.peers.versions import check_peer, versions
from quantkv.rows.files import Row
from quantkv.rows.kinds import known
from quantkv.rows.provenance import provenance
from quantkv.rows.row import build_row
from quantkv.rows.versions import CODEC_VERSION
from quantkv.spec.specs import CacheSpec
from quantkv.sweep.behaviour import Behaviour, behaviour_texts
from quantkv.sweep.config import ModelEntry, Sweep
from quantkv.sweep.engines import keyed_engine
from quantkv.sweep.failures import MeasureError
from quantkv.sweep.fitting import Fitted, fit, without_effect
from quantkv.sweep.grid import BASELINE, BEHAVIOUR, MEMORY_STEPS, Cell, expand
from quantkv.sweep.preflight import check_limit, model_config
from quantkv.sweep.rules import rules
from quantkv.sweep.session import OnArm, Result, Step
from quantkv.sweep.workers import measure_memory


class LocalMeasure:
    def __init__(self) -> None:
        self.text: Text | None = None

    def preflight(self, sweep: Sweep) -> None:
        """A missing text, a context beyond a model's limit, a format that a model cannot run."""
        self.text = load_text(sweep.quality.text.argument if sweep.quality else "python-docs")
        behaviour_texts(sweep)
        cells = expand(sweep)
        for entry in sweep.models:
            config = model_config(entry)
            if config is None:
                continue
            check_limit(config, entry.id, sweep)
            if sweep.run.on_unsupported == "error":
                for spec in {cell.spec_string: cell.spec for cell in cells}.values():
                    check_supported(config, entry, spec)

    def open(self, model: ModelEntry, sweep: Sweep) -> LocalSession:
        assert self.text is not None, "preflight comes first"
        return LocalSession(model, sweep, self.text)


class LocalSession:
    def __init__(self, entry: ModelEntry, sweep: Sweep, text: Text) -> None:
        self.entry, self.sweep, self.text = entry, sweep, text
        self.model, self.tokenizer = _load(entry)
        self.config, self.device = self.model.config, self.model.device
        self.identity = model_identity(self.model)
        self._plans: dict[int, WindowPlan] = {}
        self._fits: dict[str, Fitted] = {}
        self.behaviour = Behaviour(self.tokenizer, sweep)
        check_limit(self.config, entry.id, sweep)

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        if self.tokenizer is None and cell.kind in ("quality", *BEHAVIOUR):
            raise MeasureError("this model came without a tokenizer, so text cannot be tokenized")
        facts: dict[str, Any] = {name: self.identity[name] for name in ("weights", "fingerprint")}
        facts |= {"device": self.device.type, "engine": self._engine(cell), "codecs": CODEC_VERSION}
        facts |= {"metrics": known(cell.kind).version}
        facts |= {"peer": versions(cell.spec)} if isinstance(cell.spec, Peer) else {}
        if own := rules(cell.spec):
            facts["rules"] = {name: origin.version for name, origin in own.items()}
        if (fitted := self._fitted(cell)) is not None and fitted.reasons:
            facts["exact_layers"] = list(fitted.reasons)
        if cell.kind in ("quality", *BEHAVIOUR):
            return facts | {"tokens": self._tokens(cell)}
        return facts | {"threads": self._threads(cell.kind), "machine": self._machine}

    def check(self, cell: Cell) -> None:
        check_supported(self.config, self.entry, self._spec(cell))

    def _fitted(self, cell: Cell) -> Fitted | None:
        """The cell's spec with the layers that cannot hold it left exact, where the sweep asks for that."""
        if self.sweep.run.on_unsupported != "exact" or not isinstance(cell.spec, CacheSpec):
            return None
        if cell.spec_string not in self._fits:
            self._fits[cell.spec_string] = fit(self.config, cell.spec)
        return self._fits[cell.spec_string]

    def _spec(self, cell: Cell) -> Any:
        fitted = self._fitted(cell)
        return cell.spec if fitted is None else fitted.spec

    def _arms(self, cells: tuple[Cell, ...]) -> dict[str, Any]:
        """What runs, by the labels of cells."""
        return {cell.label: self._spec(cell) or BASELINE for cell in cells}

    def quality(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None:
        head, by_label = cells[0], {cell.label: cell for cell in cells}
        plan = self._plan(head.seed)
        quality_block(
            self.model,
            plan.at(head.context),
            self._arms(cells),
            context=head.context,
            protocol=self._quality_protocol(head.prefill),
            on_arm=lambda label, result: on_arm(by_label[label], result),
            starts=plan.starts,
            progress=step,
            keep_tokens=True,
            seed=head.seed,
        )

    def retrieval(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None:
        self.behaviour.measure(self.model, cells, self._arms(cells), on_arm, step)

    def generation(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None:
        self.behaviour.measure(self.model, cells, self._arms(cells), on_arm, step)

    def speed(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None:
        head, by_label, speed = cells[0], {cell.label: cell for cell in cells}, self.sweep.speed
        assert speed is not None
        speed_block(
            self.model,
            self._arms(cells),
            context=head.context,
            ids=self._sample(head.context + speed.rounds * speed.block, head.seed),
            batch=head.batch,
            rounds=speed.rounds,
            block=speed.block,
            fill=speed.fill,
            threads=self._threads("speed"),
            seed=head.seed,
            on_arm=lambda label, result: on_arm(by_label[label], result),
            progress=step,
        )

    def memory(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None:
        """Each cell loads its own copy in a fresh process; ours goes first, so that there is room."""
        self._drop_model()
        assert self.sweep.memory is not None
        measure_memory(cells, self._memory_cell, on_arm, self.sweep.memory.workers)

    def _memory_cell(self, cell: Cell) -> Mapping[str, Any]:
        """The worker picks the attention: the fused one for formats, the stock one for the baseline."""
        return memory_cell(
            {"name": self.entry.location, **options(self.entry), "attn": None},
            self._spec(cell) or BASELINE,
            context=cell.context,
            batch=cell.batch,
            steps=MEMORY_STEPS,
            ids=self._sample(cell.batch * (cell.context + MEMORY_STEPS), cell.seed),
            timeout=self.sweep.run.cell_timeout,
            phases=cell.protocol["phases"],
            threads=self._threads("memory"),
        )

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        seconds = result.get("seconds") or 0.0
        started = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        made = provenance(self.device)
        made |= {name: self.identity[name] for name in ("weights", "revision", "fingerprint")}
        made |= {"threads": self._threads(cell.kind), "seconds": round(seconds, 3)}
        made |= {"started": started.isoformat(timespec="seconds")}
        made |= {"peer": versions(cell.spec)} if isinstance(cell.spec, Peer) else {}
        if own := rules(cell.spec):
            made["rules"] = {name: f"{origin.name} {origin.version}" for name, origin in own.items()}
        made |= {"codecs": CODEC_VERSION, "keyed": cell.keyed(self.facts(cell))}
        return build_row(
            cell.kind,
            cell.requested(),
            self._effective(cell, result.get("effective")),
            self._protocol(cell),
            result.get(cell.kind),
            made,
            key=key,
            status=result["status"],
            reason=result.get("reason"),
        )

    def _effective(self, cell: Cell, effective: Mapping[str, Any] | None) -> dict[str, Any]:
        """With a note for what was asked and did nothing, and for layers that stayed exact."""
        ran, fitted = dict(effective or {}), self._fitted(cell)
        notes = [*ran.get("notes", []), *without_effect(self.sweep.policy, cell.spec)]
        if fitted is not None and fitted.reasons and "layers_quantized" in ran:
            ran["layers_quantized"] = fitted.packed
            notes += fitted.notes
        return ran | {"notes": notes}

    def close(self) -> None:
        self._drop_model()
        self.tokenizer = None

    def _drop_model(self) -> None:
        self.model = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _protocol(self, cell: Cell) -> dict[str, Any]:
        protocol = dict(cell.protocol)
        if cell.kind == "quality":
            protocol |= {"text_sha256": self.text.sha256, "span": max(self.sweep.contexts_of_quality())}
            protocol |= {"bos": self._quality_protocol(cell.prefill).bos_found(self.tokenizer)}
            protocol |= {"windows": len(self._plan(cell.seed).starts)}
        elif cell.kind in BEHAVIOUR:
            protocol |= self.behaviour.protocol(cell)
        else:
            protocol["threads"] = self._threads(cell.kind)
        return protocol

    @cached_property
    def _ids(self) -> Tensor:
        return tokenize(self.text, self.tokenizer)

    def _plan(self, seed: int) -> WindowPlan:
        """The windows of a seed: their ends are the same for every context of the sweep."""
        if seed not in self._plans:
            span = max(self.sweep.contexts_of_quality())
            self._plans[seed] = self._quality_protocol().plan(self._ids, self.tokenizer, span=span, seed=seed)
        return self._plans[seed]

    def _quality_protocol(self, prefill: str | None = None) -> Protocol:
        assert self.sweep.quality is not None
        settings = self.sweep.quality.protocol
        return settings.with_prefill(prefill or settings.prefill[0])

    def _tokens(self, cell: Cell) -> str:
        """SHA-256 over the tokens that the cell reads. A text or a context too short for them costs the cell,
        not the sweep."""
        try:
            return self._digest(cell) if cell.kind == "quality" else self.behaviour.digest(cell)
        except QuantKVError as error:
            raise MeasureError(str(error)) from error

    def _digest(self, cell: Cell) -> str:
        windows = torch.stack(self._plan(cell.seed).at(cell.context))
        return hashlib.sha256(windows.numpy().tobytes()).hexdigest()

    def _sample(self, length: int, seed: int) -> Tensor:
        """Tokens to time with: the start of the text, repeated where it is short."""
        if self.tokenizer is None:
            generator = torch.Generator().manual_seed(seed)
            return torch.randint(self.config.get_text_config().vocab_size, (length,), generator=generator)
        return self._ids.repeat(-(-length // len(self._ids)))[:length]

    def _threads(self, kind: str) -> int:
        """The threads of torch: as asked for speed, shared out among the workers for memory."""
        if kind == "speed" and self.sweep.speed and self.sweep.speed.threads:
            return self.sweep.speed.threads
        workers = self.sweep.memory.workers if kind == "memory" and self.sweep.memory else 1
        return max(1, torch.get_num_threads() // workers)

    @cached_property
    def _machine(self) -> dict[str, Any]:
        found = provenance(self.device)["machine"]
        return {name: value for name, value in found.items() if name != "ram_gb"}

    def _engine(self, cell: Cell) -> str:
        if not isinstance(cell.spec, CacheSpec) or self.entry.attn != "quantkv":
            return self.entry.attn
        try:
            engine = check_supported(self.config, self.entry, self._spec(cell)) or "none"
        except UnsupportedError:
            return "none"
        return keyed_engine(cell.kind, engine)


def _load(entry: ModelEntry) -> tuple[Any, Any]:
    """The model and its tokenizer; what is wrong with one checkpoint ends no sweep of others."""
    try:
        return load_model(entry.location, **options(entry))
    except QuantKVError as error:
        raise MeasureError(str(error)) from error


def options(entry: ModelEntry) -> dict[str, Any]:
    """The keyword arguments of ``load_model``."""
    return entry.model_dump(exclude={"id"})


def check_supported(config: Any, entry: ModelEntry, spec: Any) -> str | None:
    """The engine that runs this spec on this model; ``UnsupportedError`` when none can."""
    from quantkv.cache.quantized import QuantizedCache

    if spec is None:
        return None
    if isinstance(spec, Peer):
        check_peer(spec, config)
        return spec.engine
    try:
        return QuantizedCache(config, spec).engine
    except UnsupportedError:
        raise
    except QuantKVError as error:
        raise UnsupportedError(f"{spec} on {entry.id}: {error}") from error
