"""A sweep in memory: formats on a model that is loaded already, measured and written as any sweep's rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from quantkv.arms.arm import Format, format_name, parse_format
from quantkv.arms.formats import GivenFormat
from quantkv.errors import QuantKVError
from quantkv.instruments import timing
from quantkv.measurements.kind import Result, kind
from quantkv.models import model_identity
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row
from quantkv.rows.frames import Evaluation
from quantkv.sweep.config import Sweep, validate
from quantkv.sweep.grid import blocks
from quantkv.sweep.loaded import LoadedModel, texts

Formats = Iterable[Format] | Mapping[str, Format]


def measured(
    model: Any, tok: Any, arms: Mapping[str, Format], *, threads: int | None = None, **axes: Any
) -> Evaluation:
    """The rows of formats by their labels; `axes` are other parts of a sweep file, sections of kinds too."""
    identity = model_identity(model)
    dtype = str(model.dtype).removeprefix("torch.")
    entry = {"id": identity["model"], "revision": identity["revision"], "dtype": dtype}
    formats = [GivenFormat.of(label, arm) for label, arm in arms.items()]
    sweep = validate({"schema": 1, "models": entry, "formats": formats} | axes, where="evaluation")
    session = LoadedModel(model, tok, sweep.models[0], sweep, texts())
    with timing.threads(threads):
        return Evaluation(_rows(session, _cells(sweep, arms)))


def _cells(sweep: Sweep, labels: Container[str]) -> list[Cell]:
    """The cells of the formats that were given, two labels of one format too."""
    found = {}
    for cell in (cell for name in sweep.kinds for cell in kind(name).cells(sweep, sweep.models[0])):
        found[json.dumps([cell.kind, cell.requested(), dict(cell.protocol)], sort_keys=True)] = cell
    return [cell for cell in found.values() if cell.label in labels]


def _rows(session: LoadedModel, cells: Sequence[Cell]) -> list[Row]:
    keys = {id(cell): cell.key(session.facts(cell)) for cell in cells}
    rows: list[Row] = []

    def add(cell: Cell, result: Result) -> None:
        if result["status"] != "ok":
            failed = f"{cell.kind} of {cell.label} at {cell.context}: {result['reason']}"
            warnings.warn(failed, stacklevel=2)
        rows.append(session.row(cell, result, keys[id(cell)]))

    for block in blocks(cells):
        session.measure(block.cells, add, lambda what, done, total: None)
    return rows


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
