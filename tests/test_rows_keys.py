"""One key: a cell has the same in a sweep, in a call, and in the rows that lie in the repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quantkv
from quantkv.models import load_model
from quantkv.rows.files import Row, read_rows
from quantkv.sweep.config import load_config, validate
from quantkv.sweep.grid import expand
from quantkv.sweep.local import LoadedModel, texts

ROOT = Path(__file__).parent.parent
FORMATS = ["int4-head+r16", "kivi-2"]
RETRIEVAL: dict[str, Any] = {"tasks": ["passkey"], "depths": [0.5], "samples": 2, "tail": 160}
CALLS: dict[str, Any] = {
    "quality": lambda *given: quantkv.evaluate(*given, contexts=[256], windows=2, score=32),
    "speed": lambda *given: quantkv.evaluate(*given, contexts=[256], kinds=["speed"], rounds=1, block=2),
    "retrieval": lambda *given: quantkv.retrieval(*given, lengths=[600], **RETRIEVAL),
    "generation": lambda *given: quantkv.long_generation(*given, contexts=[256], tokens=4, prompts=1),
}
SECTIONS: dict[str, Any] = {
    "quality": {"protocol": {"windows": 2, "score": 32}},
    "speed": {"rounds": 1, "block": 2},
    "retrieval": RETRIEVAL,
    "generation": {"tokens": 4, "prompts": 1},
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_and_a_sweep_key_a_cell_alike(kind: str) -> None:
    model, tokenizer = load_model("random-llama")
    rows = CALLS[kind](model, tokenizer, FORMATS).rows
    asked = {"schema": 1, "models": "random-llama", "formats": FORMATS, kind: SECTIONS[kind]}
    sweep = validate(asked | {"contexts": rows[0]["requested"]["context"]})
    session = LoadedModel(model, tokenizer, sweep.models[0], sweep, texts())
    cells = [cell for cell in expand(sweep) if cell.spec is not None]
    assert [(row["requested"]["format"], row["status"]) for row in rows] == [(name, "ok") for name in FORMATS]
    for cell, row in zip(cells, rows, strict=True):
        assert cell.keyed(session.facts(cell)) == row["provenance"]["keyed"]
        assert cell.key(session.facts(cell)) == row["key"]


def shipped(experiment: str) -> Iterator[tuple[Row, set[str]]]:
    """Rows of an experiment that say what their key was made from, each with the keys that its sweeps give to
    cells of those facts."""
    folder = ROOT / "experiments" / experiment
    cells = [
        cell
        for file in folder.glob("*.yaml")
        if file.name != "paper.yaml"
        for cell in expand(load_config(file))
    ]
    for row in read_rows(folder / "rows"):
        if (keyed := row["provenance"].get("keyed")) is not None:
            yield row, {cell.key(keyed[-1]) for cell in cells if cell.kind == row["kind"]}


def test_rows_of_the_repository_are_cells_of_its_sweeps() -> None:
    found = list(shipped("quality"))
    assert len(found) == 54
    assert all(row["key"] in keys for row, keys in found)
