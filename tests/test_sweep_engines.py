"""Which engine decodes decides no quality number, so a quality row is found whatever build of it is here."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_measure import FakeMeasure, sweep
from rich.console import Console

import quantkv
from quantkv.engines import native
from quantkv.measurements.quality.run import quality_block
from quantkv.rows.files import read_rows
from quantkv.spec import presets
from quantkv.sweep.config import Sweep, validate
from quantkv.sweep.engines import keyed_engine, same_number
from quantkv.sweep.grid import expand
from quantkv.sweep.local import LocalMeasure
from quantkv.sweep.run import run_sweep
from quantkv.sweep.summary import Summary

ROWS = Path(__file__).parents[1] / "experiments" / "quality" / "rows"
BUILDS = ("native-v2", "native-v3", "native-v4", "native-base")
needs_engine = pytest.mark.skipif(native.isa() is None, reason="the native engine is not built")


def serve_with(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Decode with a build, or with none."""
    monkeypatch.setattr(native, "isa", lambda: None if engine == "reference" else engine[len("native-") :])
    if engine == "reference":
        monkeypatch.setattr(native, "kernels", lambda: None)


def small(out: Path) -> Sweep:
    quality = {"protocol": {"score": 8, "windows": 2}}
    settings = {"schema": 1, "models": "random-llama", "formats": "int4-head+r0", "contexts": 64}
    return validate({**settings, "quality": quality, "run": {"out": str(out)}})


def measured(settings: Sweep, measure: Any) -> Summary:
    return run_sweep(settings, measure=measure, console=Console(file=io.StringIO()))


@needs_engine
def test_quality_is_bit_for_bit_the_same_on_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = quantkv.load_model("random-llama", attn="quantkv")
    windows = list(torch.randint(256, (2, 150), generator=torch.Generator().manual_seed(3)))
    formats = {name: name for name in presets()}
    found: dict[str, Any] = {}
    for engine in (*(f"native-{isa}" for isa in native.kernels().usable_isas()), "reference"):
        with monkeypatch.context() as patch:
            serve_with(patch, engine)
            assert quantkv.QuantizedCache(model.config, "int4-head").engine == engine
            options: dict[str, Any] = {"context": 139, "protocol": {"score": 10, "windows": 2}}
            results = quality_block(model, windows, formats, keep_tokens=True, **options)
        arrays = {n: {k: v.tobytes() for k, v in r["tokens"].items()} for n, r in results.items()}
        found[engine] = {name: result["quality"] for name, result in results.items()}, arrays
    first = found.pop("reference")
    assert found and all(other == first for other in found.values())


@pytest.mark.long("a sweep for each of four builds")
@needs_engine
def test_a_quality_cell_is_not_measured_again_where_another_build_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine, new in (("native-v3", 1), ("native-v2", 0), ("reference", 0), ("native-v4", 0)):
        with monkeypatch.context() as patch:
            serve_with(patch, engine)
            summary = measured(small(tmp_path), LocalMeasure())
        assert (summary.counts["ok"], summary.finished_before) == (new, 1 - new)
        assert len(summary.rows()) == 1
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize("file", sorted(ROWS.glob("quality-*.json")), ids=lambda file: file.stem[-12:])
@pytest.mark.parametrize("build", BUILDS)
def test_every_build_makes_the_keys_of_rows_that_are_there(file: Path, build: str) -> None:
    row = json.loads(file.read_text(encoding="utf-8"))
    *asked, facts = row["provenance"]["keyed"]
    keyed = [*asked, facts | {"engine": keyed_engine("quality", build)}]
    assert hashlib.sha256(json.dumps(keyed, sort_keys=True).encode()).hexdigest() == row["key"]


class Elsewhere(FakeMeasure):
    """Cells whose facts name the engine, as given."""

    def __init__(self, engine: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.engine = engine

    def open(self, model: Any, sweep: Sweep) -> Any:
        session = super().open(model, sweep)
        facts = session.facts
        session.facts = lambda cell: {**facts(cell), "engine": self.engine}  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("before", [*BUILDS, "reference"])
def test_rows_under_the_key_of_another_engine_answer_quality_and_nothing_else(
    tmp_path: Path, before: str
) -> None:
    now = "reference" if before == "native-v4" else "native-v4"
    measured(sweep(tmp_path), Elsewhere(before))
    again = Elsewhere(now)
    summary = measured(sweep(tmp_path), again)
    assert {kind for kind, *_ in again.measured} == {"speed", "memory"}
    assert sum(row["kind"] == "quality" for row in summary.rows()) == summary.finished_before == 4


def test_a_failed_row_under_another_key_goes_when_its_cell_is_measured(tmp_path: Path) -> None:
    def fail(cell: Any) -> None:
        raise RuntimeError("no")

    settings = sweep(tmp_path, speed=None, memory=None)
    measured(settings, Elsewhere("native-v3", fail))
    measured(settings, Elsewhere("native-v4"))
    assert [row["status"] for row in read_rows(tmp_path)] == ["ok"] * 4


def test_other_engines_are_no_ones_twin(tmp_path: Path) -> None:
    facts = {"engine": "sdpa", "fingerprint": "x"}
    assert list(same_number("quality", facts)) == [facts]
    for kind in ("speed", "memory", "retrieval", "generation"):
        assert list(same_number(kind, {"engine": "native-v3"})) == [{"engine": "native-v3"}]
        assert keyed_engine(kind, "native-v3") == "native-v3"
    assert len({cell.key({"engine": "native-v3"}) for cell in expand(sweep(tmp_path))}) == 16
