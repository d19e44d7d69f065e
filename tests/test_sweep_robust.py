"""What happens to a cell happens to no other: failures of every kind, in processes where a process fails."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_worker
import psutil
import pytest
from fake_measure import FakeMeasure, sweep
from rich.console import Console
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import quantkv.sweep.process
from quantkv.commands.cli import app
from quantkv.errors import QuantKVError
from quantkv.instruments.processes import lifeline
from quantkv.models import load_model
from quantkv.rows.files import Row, read_rows
from quantkv.sweep import failures
from quantkv.sweep.config import validate
from quantkv.sweep.local import LocalMeasure
from quantkv.sweep.process import ProcessMeasure
from quantkv.sweep.run import run_sweep
from quantkv.sweep.runner import Measure
from quantkv.sweep.summary import Summary

FAKE = "fake_worker:Measure"
starts_workers = pytest.mark.long("a worker imports torch when it starts, and again when another is lost")
SPECS = {
    "ok": "int8-head",
    "impossible": "int8-head+r8",
    "hungry": "int8-head+r16",
    "killed": "int8-head+r32",
    "hanging": "int8-head+r40",
    "fine": "int8-head+r48",
    "crashing": "int8-head+r56",
    "leaving": "int8-head+r72",
    "greedy": "int8-head+r80",
    "broken": "int8-head+r88",
}


def formats(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "spec": SPECS[name]} for name in names]


def config(out: Path, *names: str, **changes: Any) -> Any:
    """Quality of formats that do what their names say."""
    settings: dict[str, Any] = {"contexts": [64], "speed": None, "memory": None}
    settings |= {"formats": formats(*names), "run": {"out": str(out), "on_unsupported": "skip"}}
    return sweep(out, **settings | changes)


def run(settings: Any, measure: Measure | None = None) -> tuple[Summary, dict[str, Row]]:
    """The summary, and rows by format, the last of them for the largest context; in a process of its own,
    unless there is a measure."""
    console = Console(file=io.StringIO(), width=200)
    summary = run_sweep(settings, measure=measure or ProcessMeasure(FAKE), console=console)
    rows = sorted(read_rows(settings.run.out), key=lambda row: row["requested"]["context"])
    return summary, {row["requested"]["format"]: row for row in rows}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def begun(log: Path) -> list[str]:
    """What was begun, in order, without the processes that did it."""
    return [line.partition(" ")[2] for line in log.read_text().splitlines()]


YAML = """
schema: 1
models: [random-llama]
formats:
  - {name: ok, spec: int8-head}
  - {name: impossible, spec: int8-head+r8}
  - {name: hungry, spec: int8-head+r16}
  - {name: killed, spec: int8-head+r32}
  - {name: hanging, spec: int8-head+r40}
  - {name: fine, spec: int8-head+r48}
contexts: [64]
quality: {}
run: {on_unsupported: skip, cell_timeout: 2}
report: {figures: [kl], files: [png], tables: [md], html: false}
"""


@starts_workers
def test_six_cells_of_which_four_go_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    monkeypatch.setattr(quantkv.sweep.process, "ProcessMeasure", lambda: ProcessMeasure(FAKE))
    monkeypatch.setattr("quantkv.report.write.write_report", lambda rows, out, **options: [])
    monkeypatch.setattr("quantkv.report.terminal.terminal_table", lambda rows, console: None)
    file, out = tmp_path / "sweep.yaml", tmp_path / "results"
    file.write_text(YAML)
    command = ["sweep", str(file), "--out", str(out)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 3, result.output
    rows = {row["requested"]["format"]: row for row in read_rows(out)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "ok": "ok",
        "impossible": "skipped",
        "hungry": "failed",
        "killed": "failed",
        "hanging": "failed",
        "fine": "ok",
    }
    assert rows["impossible"]["reason"] == "impossible cannot run here"
    assert rows["hungry"]["reason"].startswith("out of memory (RuntimeError: ")
    assert rows["killed"]["reason"] == "the worker was killed by signal 9 (SIGKILL)"
    assert rows["hanging"]["reason"] == "took longer than the cell_timeout allows (2 s)"
    assert all((row["quality"] is None) == (row["status"] != "ok") for row in rows.values())
    assert rows["hanging"]["provenance"]["seconds"] >= 2 and rows["killed"]["provenance"]["seconds"] > 0
    assert len(list(out.glob("*.json"))) == 6 and not (out / ".claims").exists()
    for path in out.glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    kept = {path.name: path.stat().st_mtime_ns for name in ("ok", "fine") for path in out.glob(f"*-{name}-*")}
    log.unlink()
    again = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert again.exit_code == 3 and "0 cells measured, 2 were finished before" in again.output
    assert {line.split()[1] for line in begun(log) if "quality" in line} == {"hungry", "killed", "hanging"}
    assert kept == {name: (out / name).stat().st_mtime_ns for name in kept} and len(kept) == 2


@starts_workers
def test_the_reason_says_what_happened_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.05")
    reasons = {
        "ok": None,
        "crashing": "the worker was killed by signal 11 (SIGSEGV)",
        "leaving": "the worker ended with exit code 7",
        "greedy": "out of memory (MemoryError)",
        "broken": "ArithmeticError: broke",
        "fine": None,
    }
    summary, rows = run(config(tmp_path, *reasons))
    assert {name: row["reason"] for name, row in rows.items()} == reasons
    assert all(row["status"] == ("failed" if row["reason"] else "ok") for row in rows.values())
    assert all((row["quality"] is None) == (row["status"] == "failed") for row in rows.values())
    assert all(row["provenance"]["seconds"] >= 0.05 for row in rows.values())
    assert summary.exit_code == 3


@starts_workers
def test_an_arm_that_breaks_a_block_is_not_tried_twice_where_it_is_known(tmp_path: Path, log: Path) -> None:
    run(config(tmp_path / "r", "killed", "ok", "fine"))
    assert begun(log) == [
        "open random-llama",
        "quality killed 64",
        "open random-llama",
        "quality ok 64",
        "quality fine 64",
    ]


@starts_workers
def test_where_it_is_not_known_the_arms_run_one_by_one(tmp_path: Path, log: Path) -> None:
    _, rows = run(config(tmp_path / "r", "ok", "killed", "fine", quality=None, speed={}))
    assert {name: row["status"] for name, row in rows.items() if name != "dynamic"} == {
        "ok": "ok",
        "killed": "failed",
        "fine": "ok",
    }
    assert begun(log).count("speed killed 64") == 2 and begun(log).count("speed ok 64") == 1


def test_what_ran_out_of_memory_is_not_tried_at_larger_contexts(tmp_path: Path, log: Path) -> None:
    changes: dict[str, Any] = {"contexts": [64, 128, 256], "speed": {}}
    summary, rows = run(config(tmp_path / "r", "hungry", "fine", **changes), fake_worker.Measure())
    assert rows["hungry"]["status"] == "skipped" and rows["hungry"]["quality"] is None
    found = [row for row in read_rows(tmp_path / "r") if row["status"] == "skipped"]
    assert sorted((row["kind"], row["requested"]["context"]) for row in found) == [
        ("quality", 128),
        ("quality", 256),
        ("speed", 128),
        ("speed", 256),
    ]
    already = "out of memory at a smaller context already: {} hungry, context 64"
    assert {row["reason"] for row in found} == {already.format(kind) for kind in ("quality", "speed")}
    assert summary.counts == {"ok": 3 + 2 * 3, "failed": 2, "skipped": 4} and summary.exit_code == 3
    assert not [line for line in begun(log) if "hungry" in line and not line.endswith(" 64")]


@starts_workers
def test_other_failures_say_nothing_about_larger_contexts(tmp_path: Path) -> None:
    run(config(tmp_path, "killed", "broken", contexts=[64, 128]))
    assert [row["status"] for row in read_rows(tmp_path)] == ["failed"] * 4


def test_a_kill_while_the_system_reclaims_memory_is_for_want_of_memory() -> None:
    assert failures.end_of_process(-9, reclaimed=True) == (
        "out of memory (the worker was killed by signal 9 (SIGKILL))"
    )
    assert failures.ran_out_of_memory(failures.end_of_process(-9, reclaimed=True))
    assert not failures.ran_out_of_memory(failures.end_of_process(-9, reclaimed=False))
    assert not failures.ran_out_of_memory(failures.end_of_process(-11, reclaimed=True))


def test_the_kernel_tells_how_often_it_killed_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vmstat"
    monkeypatch.setattr(failures, "VMSTAT", file)
    assert failures.memory_kills() == 0
    file.write_text("pgfault 12\noom_kill 3\noom_killer_x 9\n")
    assert failures.memory_kills() == 3


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("MemoryError", True),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("RuntimeError: [enforce fail] . DefaultCPUAllocator: can't allocate memory", True),
        ("the memory worker ran out of memory", True),
        ("std::bad_alloc", True),
        ("RuntimeError: size mismatch", False),
        ("took longer than the cell_timeout allows (2 s)", False),
        ("KeyError: 'memory'", False),
    ],
)
def test_ways_of_saying_that_memory_ran_out(text: str, memory: bool) -> None:
    assert failures.ran_out_of_memory(failures.reason(text)) is memory
    assert text in failures.reason(text) and failures.reason(failures.reason(text)) == failures.reason(text)


def test_a_model_that_cannot_be_loaded_fails_its_cells_and_no_others(tmp_path: Path) -> None:
    summary, _ = run(config(tmp_path, "ok", models=["too-large", "random-llama"]), fake_worker.Measure())
    rows = {row["requested"]["model"]: row for row in read_rows(tmp_path)}
    assert rows["random-llama"]["status"] == "ok" and summary.counts["failed"] == 1
    assert rows["too-large"]["reason"] == (
        "loading the model: out of memory (MemoryError: no room for the weights)"
    )
    assert len(summary.rows()) == 2 and summary.exit_code == 3


def test_rows_of_a_model_that_could_not_be_loaded_go_when_it_can(tmp_path: Path) -> None:
    settings = config(tmp_path, "ok", models=["too-large"])
    run(settings, fake_worker.Measure())
    summary, _ = run(settings, FakeMeasure())
    assert [row["status"] for row in read_rows(tmp_path)] == ["ok"] and summary.exit_code == 0


def test_models_that_cannot_be_loaded_keep_rows_of_their_own(tmp_path: Path) -> None:
    settings = config(tmp_path, "ok", models=["too-large", "too-large-as-well"], seeds=[0, 1])
    summary, _ = run(settings, fake_worker.Measure())
    asked = {(row["requested"]["model"], row["requested"]["seed"]) for row in read_rows(tmp_path)}
    assert asked == {(model.id, seed) for model in settings.models for seed in (0, 1)}
    assert summary.counts["failed"] == 4 == len(summary.rows())


def test_a_checkpoint_that_is_refused_costs_its_own_cells(tmp_path: Path) -> None:
    """And so does a model without a tokenizer; with transformers' own files, in worker processes."""
    whole, _ = load_model("random-llama")
    for name in ("broken", "mute"):
        whole.save_pretrained(tmp_path / name)
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    save_file({f"_orig_mod.{key}": weight for key, weight in weights.items()},
              tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    settings: dict[str, Any] = {"schema": 1, "formats": ["int8-head"], "contexts": [128]}
    settings |= {"models": [*(str(tmp_path / name) for name in ("broken", "mute")), "random-qwen2"]}
    settings |= {"quality": {"protocol": {"score": 16, "windows": 1}}, "run": {"out": str(tmp_path / "out")}}
    summary = run_sweep(validate(settings), console=Console(file=io.StringIO()))
    rows = {Path(row["requested"]["model"]).name: row for row in read_rows(tmp_path / "out")}
    assert {name: row["status"] for name, row in rows.items()} == {
        "broken": "failed", "mute": "failed", "random-qwen2": "ok"}  # fmt: skip
    assert "its names begin with '_orig_mod.'" in rows["broken"]["reason"] and summary.exit_code == 3
    assert "without a tokenizer" in rows["mute"]["reason"]


def test_a_context_too_short_for_a_question_costs_its_own_cells(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"schema": 1, "models": ["random-llama"], "formats": ["int8-head"]}
    settings |= {"contexts": [192, 320], "retrieval": {"tasks": ["needle"], "samples": 1, "depths": [0.5]}}
    settings |= {"run": {"out": str(tmp_path)}}
    summary, _ = run(validate(settings), LocalMeasure())
    rows = {row["requested"]["context"]: row for row in read_rows(tmp_path)}
    assert {context: row["status"] for context, row in rows.items()} == {192: "failed", 320: "ok"}
    assert "longer context" in rows[192]["reason"] and summary.exit_code == 3


@starts_workers
def test_a_worker_that_dies_before_the_sweep_has_begun_is_one_message(tmp_path: Path) -> None:
    settings = config(tmp_path, "ok")
    with pytest.raises(QuantKVError, match="cannot measure here: the worker ended with exit code 9"):
        run_sweep(settings, measure=ProcessMeasure("fake_worker:Lost"), console=Console(file=io.StringIO()))


def test_time_of_arms_that_take_turns_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkv.sweep.process import CellClock

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = CellClock(["a", "b"], 10)

    def pass_time(what: str | None, seconds: int) -> float:
        clock.turn(what)
        for _ in range(seconds):
            now[0] += 1
            clock.left()
        return clock.left()

    assert clock.left() == 20
    assert [pass_time("prefill", 15), pass_time("a", 4), pass_time("b", 9), pass_time("a", 3)] == [5, 6, 1, 3]
    assert [pass_time(None, 2), pass_time("b", 2)] == [3, 0]
    assert CellClock(["a"], None).left() == math.inf


PARENT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_sweep_robust import config
from quantkv.sweep.process import ProcessMeasure
from quantkv.sweep.run import run_sweep
run_sweep(config(Path({out!r}), "ok", "hanging"), measure=ProcessMeasure({fake!r}))
"""


@starts_workers
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_the_sweep(tmp_path: Path, log: Path, number: signal.Signals) -> None:
    out = tmp_path / "r"
    code = PARENT.format(tests=str(Path(__file__).parent), out=str(out), fake=FAKE)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with lifeline() as stdin:
        parent = subprocess.Popen([sys.executable, "-c", code], stdin=stdin, env=environment)
        deadline = time.monotonic() + 120
        while not (log.exists() and "hanging" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        worker = psutil.Process(int(log.read_text().split()[0]))
        parent.send_signal(number)
        parent.wait(timeout=60)
        gone, _ = psutil.wait_procs([worker], timeout=60)
    assert gone == [worker]
