"""Measuring in this process: one model loaded at a time, memory cells in subprocesses of their own.

A sweep runs this in worker processes (``quantkv.sweep.process``).
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from quantkv.errors import QuantKVError
from quantkv.models import load_model
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep
from quantkv.sweep.failures import MeasureError
from quantkv.sweep.fitting import check_limit, model_config
from quantkv.sweep.grid import expand
from quantkv.sweep.loaded import LoadedModel, Texts, check_supported, texts


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


def _load(entry: ModelEntry) -> tuple[Any, Any]:
    """The model and its tokenizer; what is wrong with one checkpoint ends no sweep of others."""
    try:
        return load_model(entry.location, **entry.options)
    except QuantKVError as error:
        raise MeasureError(str(error)) from error
