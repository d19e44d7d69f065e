"""`quantkv bench simulate` at a tiny size: structure and arithmetic, nothing about real times."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from runs import token_ids
from typer.testing import CliRunner

from quantkv import simulate
from quantkv.bench import machine, table
from quantkv.bench.report import as_json
from quantkv.bench.settings import SimulateSettings
from quantkv.bench.simulate import MAX_RATIO, PLAIN, bench_simulate, flags_of, simulated
from quantkv.commands.cli import app
from quantkv.errors import QuantKVError
from quantkv.models import random_model
from quantkv.spec import parse_spec

SMALL: dict[str, Any] = {"model": "random-llama", "tokens": (90, 150), "rounds": 2}


@pytest.fixture(autouse=True)
def _small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROBE_BYTES", 1 << 20)


@pytest.mark.long("a whole benchmark of several formats and lengths")
def test_rows_flags_and_table() -> None:
    report = json.loads(as_json(bench_simulate(SimulateSettings(formats=("int4-head", "kivi-2"), **SMALL))))
    names = [(row["tokens"], row["name"]) for row in report["rows"]]
    assert names == [(n, name) for n in (90, 150) for name in (PLAIN, "int4-head", "kivi-2")]
    for row in report["rows"]:
        plain = next(r for r in report["rows"] if r["tokens"] == row["tokens"] and r["format"] is None)
        ratio = np.median(np.array(row["rounds_ms"]) / np.array(plain["rounds_ms"]))
        assert row["time_to_plain"]["median"] == pytest.approx(ratio) and len(row["rounds_ms"]) == 2
        assert row["scratch_bytes"] is None or row["scratch_bytes"] >= 0
    assert "only 2 rounds" in report["flags"]
    text = table.markdown(report)
    assert text.count(PLAIN) == 2 and "time / plain's" in text and "scratch MB" in text


def test_the_timed_pass_is_the_simulated_one() -> None:
    model, ids, spec = random_model("random-llama"), token_ids(1, 150), parse_spec("int2-head+r8+f16")
    with torch.inference_mode():
        timed = simulated(model, spec, ids)
        with simulate(model, spec):
            whole = model(ids, use_cache=False).logits[:, -1:]
        plain = model(ids, use_cache=False).logits[:, -1:]
    assert torch.allclose(timed, whole, atol=1e-4) and (timed - plain).abs().max() > 1e-2


def test_slow_passes_and_untold_memory_are_flagged() -> None:
    row = {"name": "a", "tokens": 5, "time_to_plain": {"median": MAX_RATIO + 0.1}, "scratch_bytes": None}
    fine = {"name": "b", "tokens": 5, "time_to_plain": {"median": MAX_RATIO}, "scratch_bytes": 1}
    assert flags_of([row, fine]) == [
        "a at 5 tokens takes 2.6 plain passes",
        "this machine does not tell peaks of memory",
    ]
    assert flags_of([fine]) == []


def test_a_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(QuantKVError, match="tokens"):
        bench_simulate(SimulateSettings(model="random-llama", tokens=(10**9,)))


def test_command() -> None:
    arguments = ["bench", "simulate", "random-llama", "--tokens", "60", "--rounds", "1", "--json", "-"]
    result = CliRunner().invoke(app, [*arguments, "--formats", "int8-head"])
    assert result.exit_code == 0 and json.loads(result.stdout)["benchmark"] == "simulate"
    refused = CliRunner().invoke(app, ["bench", "simulate", "random-llama", "--tokens", "0"])
    assert refused.exit_code == 2 and "--tokens must be at least 1" in refused.stderr
