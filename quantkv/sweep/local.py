"""Cells on a loaded model, in this process: what determines their numbers, who measures them, and their rows.

A sweep opens its models with `LocalMeasure`, one at a time, in worker processes (`quantkv.sweep.process`);
`quantkv.evaluate` and its like hand in a model that is there already.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

import torch

from quantkv import data
from quantkv.arms.arm import BASELINE, Format, is_function
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.measurements.kind import OnCell, Result, Step, kind
from quantkv.models import load_model, model_identity
from quantkv.peers.peer import Peer
from quantkv.peers.versions import check_peer, versions
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row
from quantkv.rows.kinds import CODEC_VERSION, known
from quantkv.rows.provenance import provenance
from quantkv.rows.row import build_row
from quantkv.rows.settings import ModelEntry, TextSettings
from quantkv.spec.specs import CacheSpec
from quantkv.sweep.config import Sweep
from quantkv.sweep.engines import keyed_engine, rules, versions_of
from quantkv.sweep.failures import MeasureError
from quantkv.sweep.fitting import Fitted, check_limit, fit, model_config, without_effect
from quantkv.sweep.grid import expand

Texts = Callable[[TextSettings], data.Text]


def texts() -> Texts:
    """Reads each text once, for as many models as share this."""
    return cache(lambda asked: data.load_text(asked.argument))


class LoadedModel:
    """A session around a model."""

    def __init__(self, model: Any, tokenizer: Any, entry: ModelEntry, sweep: Sweep, text: Texts) -> None:
        self.model, self.tokenizer, self.entry, self.sweep = model, tokenizer, entry, sweep
        self.config, self.device, self.identity = model.config, model.device, model_identity(model)
        self.text = text
        self.ids = cache(lambda asked: data.tokenize(self.text(asked), self.tokenizer))
        self.measurement = cache(lambda name: kind(name).open(self, sweep.section(name)))
        self._fits: dict[str, Fitted] = {}

    @property
    def cell_timeout(self) -> float | None:
        return self.sweep.run.cell_timeout

    def arm(self, cell: Cell) -> Format:
        return self._spec(cell) or BASELINE

    def release(self) -> None:
        """The model belongs to whoever made this."""

    def close(self) -> None:
        self.release()
        self.tokenizer = None

    def check(self, cell: Cell) -> None:
        check_supported(self.config, self.entry, self._spec(cell))

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        self.measurement(cells[0].kind).measure(cells, on_cell, step)

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        facts: dict[str, Any] = {name: self.identity[name] for name in ("weights", "fingerprint")}
        facts |= {"device": self.device.type, "engine": self._engine(cell), "codecs": CODEC_VERSION}
        facts |= {"metrics": known(cell.kind).version}
        facts |= {"peer": versions(cell.spec)} if isinstance(cell.spec, Peer) else {}
        facts |= {"function": cell.label} if is_function(cell.spec) else {}
        if own := rules(cell.spec, cell.kind):
            facts["rules"] = {name: origin.version for name, origin in own.items()}
        if changed := versions_of(cell.spec):
            facts["methods"] = changed
        if (fitted := self._fitted(cell)) is not None and fitted.reasons:
            facts["exact_layers"] = list(fitted.reasons)
        return facts | self.facts_of_kind(cell)

    def facts_of_kind(self, cell: Cell) -> dict[str, Any]:
        return self.measurement(cell.kind).facts(cell)

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        seconds = result.get("seconds") or 0.0
        started = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        made = provenance(self.device)
        made |= {name: self.identity[name] for name in ("weights", "revision", "fingerprint")}
        protocol = dict(cell.protocol) | self.measurement(cell.kind).protocol(cell)
        made |= {"threads": protocol.get("threads") or torch.get_num_threads(), "seconds": round(seconds, 3)}
        made |= {"started": started.isoformat(timespec="seconds")}
        made |= {"peer": versions(cell.spec)} if isinstance(cell.spec, Peer) else {}
        if own := rules(cell.spec, cell.kind):
            made["rules"] = {name: f"{origin.name} {origin.version}" for name, origin in own.items()}
        made |= {"codecs": CODEC_VERSION, "keyed": cell.keyed(self.facts(cell))}
        effective, section = self._effective(cell, result.get("effective")), result.get(cell.kind)
        outcome = {"key": key, "status": result["status"], "reason": result.get("reason")}
        return build_row(cell.kind, cell.requested(), effective, protocol, section, made, **outcome)

    def _effective(self, cell: Cell, effective: Mapping[str, Any] | None) -> dict[str, Any]:
        """With a note for what was asked and did nothing, and for layers that stayed exact."""
        ran, fitted = dict(effective or {}), self._fitted(cell)
        notes = [*ran.get("notes", []), *without_effect(self.sweep.policy, cell.spec)]
        if fitted is not None and fitted.reasons and "layers_quantized" in ran:
            ran["layers_quantized"] = fitted.packed
            notes += fitted.notes
        return ran | {"notes": notes}

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

    def _engine(self, cell: Cell) -> str:
        if not isinstance(cell.spec, CacheSpec) or self.entry.attn != "quantkv":
            return self.entry.attn
        try:
            engine = check_supported(self.config, self.entry, self._spec(cell)) or "none"
        except UnsupportedError:
            return "none"
        return keyed_engine(cell.kind, engine)


class LocalSession(LoadedModel):
    """A model that is loaded for a sweep, and dropped when memory is measured."""

    def __init__(self, entry: ModelEntry, sweep: Sweep, text: Texts | None = None) -> None:
        super().__init__(*_load(entry), entry, sweep, text or texts())
        check_limit(self.config, entry.id, sweep)

    def facts_of_kind(self, cell: Cell) -> dict[str, Any]:
        """A text or a context too short for a cell costs the cell, not the sweep."""
        try:
            return super().facts_of_kind(cell)
        except QuantKVError as error:
            raise MeasureError(str(error)) from error

    def release(self) -> None:
        self.model = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class LocalMeasure:
    def __init__(self) -> None:
        self.text = texts()

    def preflight(self, sweep: Sweep) -> None:
        """A missing text, a context beyond a model's limit, a format that a model cannot run."""
        for name in sweep.kinds:
            if (text := getattr(sweep.section(name), "text", None)) is not None:
                self.text(text)
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
        return LocalSession(model, sweep, self.text)


def _load(entry: ModelEntry) -> tuple[Any, Any]:
    """The model and its tokenizer; what is wrong with one checkpoint ends no sweep of others."""
    try:
        return load_model(entry.location, **entry.options)
    except QuantKVError as error:
        raise MeasureError(str(error)) from error


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
