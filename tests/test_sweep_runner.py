"""The runner with a fake measure: resume, failures, interruption, claims, and a kill in mid-sweep."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure, FakeSession, sweep
from rich.console import Console

from quantkv.errors import QuantKVError
from quantkv.rows.cell import Cell
from quantkv.rows.claims import Claims
from quantkv.rows.files import read_rows, write_row
from quantkv.sweep.grid import expand
from quantkv.sweep.run import run_sweep
from quantkv.sweep.summary import Summary

TOTAL = 2 * 2 + 3 * 2 + 3 * 2
"""Cells of ``fake_measure.sweep``: two formats at two contexts, and the baseline where it is a cell."""


def run(config: Any, measure: FakeMeasure) -> tuple[Summary, str]:
    out = io.StringIO()
    summary = run_sweep(config, measure=measure, console=Console(file=out, width=200))
    return summary, out.getvalue()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json")}


def test_every_cell_becomes_one_row(tmp_path: Path) -> None:
    measure = FakeMeasure()
    summary, said = run(sweep(tmp_path), measure)
    assert (summary.total, summary.counts["ok"], summary.exit_code) == (TOTAL, TOTAL, 0)
    assert len(names(tmp_path)) == TOTAL == len(summary.rows())
    assert measure.opened == measure.closed == ["random-llama"]
    assert f"[{TOTAL}/{TOTAL}]" in said and "left" in said


def test_time_left_names_the_kinds_that_have_not_been_seen(tmp_path: Path) -> None:
    """Half a second a cell: two of quality, three of speed, three of memory."""
    _, said = run(sweep(tmp_path, contexts=[64]), FakeMeasure())
    finished = [line.split(" s  ")[1] for line in said.splitlines() if " ok " in line]
    assert finished == [
        "about 0 s left + unknown for 3 speed and 3 memory cells",
        "time left unknown for 3 speed and 3 memory cells",
        "about 1 s left + unknown for 3 memory cells",
        "about 0 s left + unknown for 3 memory cells",
        "time left unknown for 3 memory cells",
        "about 1 s left",
        "about 0 s left",
        "",
    ]


def test_a_log_has_one_line_for_each_cell_however_narrow(tmp_path: Path) -> None:
    out = io.StringIO()
    run_sweep(sweep(tmp_path), measure=FakeMeasure(), console=Console(file=out, width=20))
    lines = out.getvalue().splitlines()
    assert all(line.startswith("[") for line in lines) and max(map(len, lines)) > 20


def test_a_finished_cell_is_never_run_twice(tmp_path: Path) -> None:
    run(sweep(tmp_path), FakeMeasure())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    again = FakeMeasure()
    summary, _ = run(sweep(tmp_path), again)
    assert again.measured == [] and summary.finished_before == TOTAL and summary.exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}


def test_a_block_runs_only_the_arms_that_are_missing(tmp_path: Path) -> None:
    run(sweep(tmp_path, formats=["int8-head"], contexts=[64]), FakeMeasure())
    measure = FakeMeasure()
    run(sweep(tmp_path, contexts=[64]), measure)
    assert measure.blocks == [(kind, 64, ("int4-head",)) for kind in ("quality", "speed", "memory")]


def test_a_cell_that_the_seed_cannot_change_runs_once(tmp_path: Path) -> None:
    measure = FakeMeasure()
    measure.seed_matters = False
    summary, _ = run(sweep(tmp_path, seeds=[0, 1]), measure)
    assert len(measure.measured) == TOTAL == summary.total == len(names(tmp_path))


def test_a_truncated_file_is_reported_and_its_cell_runs_again(tmp_path: Path) -> None:
    run(sweep(tmp_path), FakeMeasure())
    victim = next(tmp_path.glob("speed-int4-head-c128-*.json"))
    victim.write_text(victim.read_text()[:100])
    measure = FakeMeasure()
    summary, said = run(sweep(tmp_path), measure)
    assert measure.measured == [("speed", "int4-head", 128)]
    assert said.count(victim.name) == 1 and summary.exit_code == 0
    assert len(summary.rows()) == TOTAL


def fail_on(kind: str, label: str, context: int, error: BaseException) -> Any:
    def on_cell(cell: Cell) -> None:
        if (cell.kind, cell.label, cell.context) == (kind, label, context):
            raise error

    return on_cell


@pytest.mark.parametrize("kind", ["quality", "speed", "memory"])
def test_a_cell_that_raises_fails_alone_and_runs_again_next_time(tmp_path: Path, kind: str) -> None:
    measure = FakeMeasure(fail_on(kind, "int8-head", 64, RuntimeError("broke")))
    summary, said = run(sweep(tmp_path), measure)
    assert (summary.counts["ok"], summary.counts["failed"], summary.exit_code) == (TOTAL - 1, 1, 3)
    (failed,) = [row for row in read_rows(tmp_path) if row["status"] == "failed"]
    assert failed["reason"] == "RuntimeError: broke" and failed[kind] is None
    assert "failed: RuntimeError: broke" in said
    again = FakeMeasure()
    summary, _ = run(sweep(tmp_path), again)
    assert again.measured == [(kind, "int8-head", 64)] and summary.exit_code == 0
    assert {row["status"] for row in read_rows(tmp_path)} == {"ok"}


@pytest.mark.parametrize(("mode", "status", "code"), [("skip", "skipped", 0), ("error", "failed", 3)])
def test_unsupported_cells(tmp_path: Path, mode: str, status: str, code: int) -> None:
    config = sweep(tmp_path, run={"out": str(tmp_path), "on_unsupported": mode})
    measure = FakeMeasure(unsupported="int4-head")
    summary, _ = run(config, measure)
    assert (summary.counts[status], summary.exit_code) == (6, code)
    reasons = {row["reason"] for row in read_rows(tmp_path) if row["status"] == status}
    assert reasons == {"int4-head cannot run here"}
    assert all(label != "int4-head" for _, label, _ in measure.measured)


def test_a_check_that_breaks_is_a_failure_and_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(session: FakeSession, cell: Cell) -> None:
        if cell.label == "int4-head":
            raise ValueError("broke")

    monkeypatch.setattr(FakeSession, "check", check)
    measure = FakeMeasure()
    summary, _ = run(sweep(tmp_path), measure)
    assert (summary.counts["failed"], summary.exit_code) == (6, 3)
    assert {row["reason"] for row in read_rows(tmp_path) if row["status"] == "failed"} == {
        "ValueError: broke"
    }
    assert all(label != "int4-head" for _, label, _ in measure.measured)


def test_interruption_keeps_what_is_finished(tmp_path: Path) -> None:
    measure = FakeMeasure(fail_on("speed", "int8-head", 64, KeyboardInterrupt()))
    summary, _ = run(sweep(tmp_path), measure)
    assert summary.interrupted and summary.exit_code == 130
    finished = len(measure.measured)
    assert len(names(tmp_path)) == finished and summary.unfinished == TOTAL - finished
    assert measure.closed == ["random-llama"] and not (tmp_path / ".claims").exists()
    again = FakeMeasure()
    run(sweep(tmp_path), again)
    assert len(again.measured) == TOTAL - finished


def test_what_ran_otherwise_than_asked_is_said_once(tmp_path: Path) -> None:
    measure = FakeMeasure()
    measure.extra = {"attn": "sdpa"}
    _, said = run(sweep(tmp_path), measure)
    assert said.count("int8-head: attn: asked for quantkv, ran sdpa") == 1
    row = next(row for row in read_rows(tmp_path) if row["requested"]["format"] == "int8-head")
    assert (row["requested"]["attn"], row["effective"]["attn"]) == ("quantkv", "sdpa")


def test_no_nan_or_infinity_on_disk(tmp_path: Path) -> None:
    run(sweep(tmp_path), FakeMeasure())
    text = "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert "NaN" not in text and "Infinity" not in text
    rows = [row for row in read_rows(tmp_path) if row["kind"] == "quality"]
    assert {row["quality"]["perplexity"] for row in rows} == {None}


def key_of(config: Any, kind: str, label: str, context: int) -> str:
    session = FakeMeasure().open(config.models[0], config)
    (cell,) = [c for c in expand(config) if (c.kind, c.label, c.context) == (kind, label, context)]
    return cell.key(session.facts(cell))


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_cell_of_another_worker_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """The other one claims a cell, and writes its row while this one waits."""
    config = sweep(tmp_path)
    key = key_of(config, "quality", "int4-head", 128)
    with Claims(tmp_path) as other:

        def finish(seconds: float) -> None:
            requested = {"format": "int4-head", "context": 128}
            row = {"schema": 1, "kind": "quality", "key": key, "status": status, "quality": {}}
            write_row(row | {"requested": requested, "reason": None}, tmp_path)
            other.release(key)

        monkeypatch.setattr(time, "sleep", finish)
        assert other.take(key)
        measure = FakeMeasure()
        summary, said = run(config, measure)
    assert ("quality", "int4-head", 128) not in measure.measured and "waiting for other workers" in said
    assert (summary.elsewhere, summary.counts["ok"], summary.unfinished) == (1, TOTAL - 1, 0)
    assert summary.exit_code == (3 if status == "failed" else 0)


def test_a_cell_that_another_worker_gives_up_is_measured_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sweep(tmp_path)
    key = key_of(config, "quality", "int4-head", 128)
    with Claims(tmp_path) as other:
        monkeypatch.setattr(time, "sleep", lambda seconds: other.release(key))
        assert other.take(key)
        measure = FakeMeasure()
        summary, _ = run(config, measure)
    assert measure.measured[-1] == ("quality", "int4-head", 128)
    assert (summary.elsewhere, summary.counts["ok"]) == (0, TOTAL)
    assert measure.opened == measure.closed == ["random-llama"] * 2


def test_an_unwritable_folder_is_an_error_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    measure = FakeMeasure()
    with pytest.raises(QuantKVError, match=r"cannot write results to .*; choose another with --out"):
        run_sweep(sweep(tmp_path / "file" / "out"), measure=measure)
    assert measure.opened == []


def test_a_full_disk_ends_the_sweep_and_fails_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def on_cell(cell: Cell) -> None:
        if len(measure.measured) == 3:
            monkeypatch.setattr(os, "fsync", full)

    measure = FakeMeasure(on_cell)
    with pytest.raises(QuantKVError, match="No space left on device; finished cells are kept"):
        run(sweep(tmp_path), measure)
    assert [row["status"] for row in read_rows(tmp_path)] == ["ok"] * 3
    assert not (tmp_path / ".claims").exists() and list(tmp_path.glob(".*.tmp")) == []


def test_preflight_errors_stop_a_sweep_before_a_model_is_opened(tmp_path: Path) -> None:
    class Wrong(FakeMeasure):
        def preflight(self, sweep: Any) -> None:
            raise QuantKVError("no such text")

    measure = Wrong()
    with pytest.raises(QuantKVError, match="no such text"):
        run_sweep(sweep(tmp_path), measure=measure)
    assert measure.opened == [] and names(tmp_path) == set()


def test_the_model_is_asked_for_once_per_model(tmp_path: Path) -> None:
    measure = FakeMeasure()
    summary, _ = run(sweep(tmp_path, models=["random-llama", "random-qwen2"]), measure)
    assert measure.opened == measure.closed == ["random-llama", "random-qwen2"]
    assert summary.total == 2 * TOTAL == len(names(tmp_path))


CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from fake_measure import FakeMeasure, FakeSession, sweep
from quantkv.sweep.run import run_sweep
def slow(cell):
    print(cell.kind, cell.label, cell.context, flush=True)
    time.sleep({pause})
run_sweep(sweep({out!r}), measure=FakeMeasure(slow))
"""


def start_child(out: Path, pause: float) -> subprocess.Popen[str]:
    code = CHILD.format(tests=str(Path(__file__).parent), out=str(out), pause=pause)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def wait_for_rows(child: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(names(out)) < count and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child.poll() is None and len(names(out)) >= count


@pytest.mark.long("starts a sweep to kill")
def test_after_a_kill_only_unfinished_cells_run(tmp_path: Path) -> None:
    child = start_child(tmp_path, pause=0.3)
    wait_for_rows(child, tmp_path, 5)
    child.kill()
    child.wait()
    finished = names(tmp_path)
    assert list((tmp_path / ".claims").iterdir()), "the killed worker left its claim behind"
    measure = FakeMeasure()
    summary, _ = run(sweep(tmp_path), measure)
    assert len(measure.measured) == TOTAL - len(finished) and summary.elsewhere == 0
    assert finished <= names(tmp_path) and len(names(tmp_path)) == TOTAL


@pytest.mark.long("starts a sweep to end")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    child = start_child(tmp_path, pause=0.3)
    wait_for_rows(child, tmp_path, 2)
    child.send_signal(number)
    assert child.wait(timeout=60) == 0
    assert not (tmp_path / ".claims").exists()
    assert 2 <= len(read_rows(tmp_path)) < TOTAL
