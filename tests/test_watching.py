"""Watching a sweep from its folder: counts, claims, pace, and when it ends."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure, sweep
from rich.console import Console
from rows import failed_row, quality_row, speed_row
from typer.testing import CliRunner, Result

from quantkv.commands.cli import app
from quantkv.errors import QuantKVError
from quantkv.rows.claims import STALE_SECONDS, Claims, read_claims
from quantkv.rows.files import read_rows, write_row
from quantkv.sweep.run import run_sweep
from quantkv.watching.planned import PlannedCells
from quantkv.watching.snapshot import Folder, rate, workers
from quantkv.watching.view import log_line

CONFIG = """
schema: 1
models: [random-llama]
formats: [int8-head, int4-head]
contexts: [64, 128]
quality: {}
speed: {}
memory: {}
"""
CELLS = 2 * 2 + 2 * (2 * 3)
"""Two contexts: two formats of quality, and of speed and memory the baseline besides."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(CONFIG)
    return path


def command(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["watch", *map(str, arguments)], env={"COLUMNS": "100", "NO_COLOR": "1"})


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = [quality_row("int4-head", 512), speed_row("int4-head", 512)]
    rows.append(failed_row("quality", "kivi-2", 512, "out of memory"))
    for row in rows:
        write_row(row | {"key": hashlib.sha256(row["key"].encode()).hexdigest()}, folder)


def test_a_folder_alone_tells_counts_and_failures(tmp_path: Path) -> None:
    fill(tmp_path)
    seen = Folder(tmp_path).look()
    assert seen.counts == {"quality": {"ok": 1, "failed": 1}, "speed": {"ok": 1}}
    assert (seen.total, seen.left_seconds, seen.running, seen.done) == (None, None, 0, True)
    assert seen.failures == ["quality kivi-2 at 512: out of memory"]


def test_claims_are_cells_that_run_until_their_owner_is_silent(tmp_path: Path) -> None:
    fill(tmp_path)
    with Claims(tmp_path) as claims:
        assert Folder(tmp_path).look().done is False  # at work, though no cell is taken yet
        assert claims.take("a" * 64) and claims.take("b" * 64)
        seen = Folder(tmp_path).look()
        assert (seen.running, seen.stale, seen.done) == (2, 0, False)
        (worker,) = workers(seen.claims)
        assert worker.cells == 2 and f"process {os.getpid()}" in worker.name and worker.heartbeat < 5
        silent = tmp_path / ".claims" / f"{'a' * 64}.json"
        then = time.time() - STALE_SECONDS - 30
        os.utime(silent, (then, then))
        seen = Folder(tmp_path).look()
        assert (seen.running, seen.stale) == (1, 1)
        assert 29 < max(claim.heartbeat for claim in seen.claims) - STALE_SECONDS < 40
    assert Folder(tmp_path).look().done


def test_running_cells_are_named(tmp_path: Path) -> None:
    """Seven cells of a block, and one whose owner is silent: five are named, two counted, that one not."""
    fill(tmp_path)
    with Claims(tmp_path) as claims:
        for number in range(8):
            claims.take(f"{number}" * 64, f"speed  format{number}, context 512")
        silent = tmp_path / ".claims" / f"{'7' * 64}.json"
        os.utime(silent, (0, 0))
        seen = Folder(tmp_path).look()
        once = command(tmp_path, "--once").output
        os.utime(tmp_path / ".claims" / f"{'6' * 64}.json", (0, 0))
        fewer = command(tmp_path, "--once").output
    assert [claim.cell for claim in seen.claims][:2] == [f"speed  format{n}, context 512" for n in (0, 1)]
    assert [n for n in range(8) if f"running: speed  format{n}, context 512" in once] == [0, 1, 2, 3, 4]
    assert "and 2 cells more of" in once and "and 1 cell more of" in fewer
    assert log_line(seen).endswith("1 stale; running speed  format0, context 512")


def test_a_sweep_claims_its_cells_by_their_titles(tmp_path: Path) -> None:
    titles: list[list[str]] = []

    def look(cell: Any) -> None:
        titles.append(sorted(claim.cell for claim in read_claims(tmp_path)))

    run_sweep(sweep(tmp_path, contexts=[64]), measure=FakeMeasure(look), console=Console(quiet=True))
    assert titles[0] == ["quality  int4-head, context 64", "quality  int8-head, context 64"]


def test_a_claim_that_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".claims").mkdir()
    (tmp_path / ".claims" / "c.json").write_text("{")
    (claim,) = read_claims(tmp_path)
    assert (claim.worker, claim.cell) == ("unknown", "") and not claim.stale


def test_a_plan_tells_what_is_to_come_and_how_long_it_takes(tmp_path: Path, config: Path) -> None:
    """Quality and memory of both contexts are finished at half a second a cell, as is speed of the first."""
    out = tmp_path / "r"
    run_sweep(sweep(out, speed=None), measure=FakeMeasure(), console=Console(quiet=True))
    run_sweep(sweep(out, contexts=[64]), measure=FakeMeasure(), console=Console(quiet=True))
    seen = Folder(out, PlannedCells(config, out)).look()
    assert (seen.total, seen.status("ok")) == (CELLS, CELLS - 3) and not seen.done
    assert not seen.left_unknown and seen.left_seconds == pytest.approx(
        3 * 0.5 * 1.5
    )  # half grows with context
    run_sweep(sweep(out), measure=FakeMeasure(), console=Console(quiet=True))
    seen = Folder(out, PlannedCells(config, out)).look()
    assert seen.done and seen.with_rows == CELLS and seen.left_seconds is None


def test_workers_share_the_time_that_is_left(tmp_path: Path, config: Path) -> None:
    out = tmp_path / "r"
    run_sweep(sweep(out, contexts=[64]), measure=FakeMeasure(), console=Console(quiet=True))
    alone = Folder(out, PlannedCells(config, out)).look().left_seconds
    with Claims(out) as claims:
        claims.take("a" * 64)
        mine = json.loads((out / ".claims" / f"{'a' * 64}.json").read_text())
        other = out / ".claims" / f"{'b' * 64}.json"
        other.write_text(json.dumps(mine | {"host": "another"}))
        shared = Folder(out, PlannedCells(config, out)).look().left_seconds
        other.unlink()
    assert alone is not None and shared == pytest.approx(alone / 2)


def test_rows_of_other_settings_are_not_of_the_plan(tmp_path: Path, config: Path) -> None:
    out = tmp_path / "r"
    run_sweep(
        sweep(out, quality={"protocol": {"score": 64}}, speed=None, memory=None),
        measure=FakeMeasure(),
        console=Console(quiet=True),
    )
    assert Folder(out).look().status("ok") == 4
    assert Folder(out, PlannedCells(config, out)).look().status("ok") == 0


def test_a_report_of_a_plan_has_the_rows_of_each_checkpoint(tmp_path: Path, config: Path) -> None:
    """Another checkpoint came under the model's name; then none that could be loaded."""
    out, weights = tmp_path / "r", ("a" * 64, "b" * 64)
    run_sweep(sweep(out, speed=None, memory=None), measure=FakeMeasure(), console=Console(quiet=True))
    rows = [row | {"provenance": row["provenance"] | {"fingerprint": weights[0]}} for row in read_rows(out)]
    for row in list(rows):
        keyed = copy.deepcopy(row["provenance"]["keyed"])
        keyed[3]["model"] = weights[1]
        key = hashlib.sha256(json.dumps(keyed, sort_keys=True).encode()).hexdigest()
        rows.append(row | {"key": key, "provenance": {"fingerprint": weights[1], "keyed": keyed}})
    plan, failed = PlannedCells(config, out), {"status": "failed", "reason": "broke", "quality": None}
    blind = rows[0] | failed | {"provenance": rows[0]["provenance"] | {"fingerprint": None}}
    for order in (rows, rows[::-1], [blind, *rows]):
        found = plan.answering(order)
        assert sorted(map(id, found)) == sorted(map(id, rows))
        assert len(plan.sort(order)[0]) == 4
    assert plan.answering([blind]) == [blind]


def test_a_failed_cell_ends_a_watch_only_when_nobody_may_try_it_again(tmp_path: Path, config: Path) -> None:
    def breaks(cell: Any) -> None:
        if cell.kind == "speed":
            raise RuntimeError("broke")

    out = tmp_path / "r"
    run_sweep(sweep(out), measure=FakeMeasure(breaks), console=Console(quiet=True))
    plan = PlannedCells(config, out)
    seen = Folder(out, plan).look()
    assert seen.status("failed") == 6 and seen.done
    with Claims(out):
        assert not Folder(out, plan).look().done


def test_the_pace_is_that_of_the_last_ten_minutes() -> None:
    now = 1e6
    assert rate([now - 60, now - 40, now - 20, now - 5000], now) == pytest.approx(2.0)
    assert rate([now - 60, now - 40], now) is None
    assert rate([now - 2, now - 1, now], now) is None  # too short a time to tell


def test_once_and_json_say_how_it_stands(tmp_path: Path) -> None:
    fill(tmp_path)
    once = command(tmp_path, "--once")
    assert once.exit_code == 0 and "2 finished, 1 failed, nobody is at work" in once.output
    assert "failed: quality kivi-2 at 512: out of memory" in once.output
    told = json.loads(command(tmp_path, "--json").stdout)
    assert (told["ok"], told["failed"], told["skipped"], told["running"]) == (2, 1, 0, 0)
    assert told["done"] is True and told["workers"] == []


def test_a_watch_of_a_finished_sweep_ends_at_once(tmp_path: Path) -> None:
    fill(tmp_path)
    assert command(tmp_path).exit_code == 3
    next(tmp_path.glob("*kivi*")).unlink()
    assert command(tmp_path).exit_code == 0


def test_a_folder_that_is_not_there(tmp_path: Path, config: Path) -> None:
    result = command(tmp_path / "none")
    assert result.exit_code == 2 and "no results folder" in result.stderr
    with pytest.raises(QuantKVError, match="with --config"):
        Folder(tmp_path / "none")
    waiting = command(tmp_path / "none", "--config", config, "--once")
    assert waiting.exit_code == 0 and f"0 of {CELLS} finished, nobody is at work" in waiting.output


@contextlib.contextmanager
def watching(folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, ended with the test."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "CI": ""}
    environment |= options.pop("env", {})
    line = [sys.executable, "-u", "-m", "quantkv.commands.cli", "watch", str(folder)]
    process = subprocess.Popen(line, env=environment, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.long("starts a command")
def test_a_log_gets_plain_lines_until_the_sweep_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    with Claims(tmp_path) as claims:
        claims.take("a" * 64)
        with watching(tmp_path, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            claims.__exit__()
            rest = process.stdout.read()
            assert process.wait(30) == 3
    assert first == "2 finished, 1 failed, 1 taken by 1 worker\n"
    assert rest == "2 finished, 1 failed, nobody is at work\n"
    assert all(character.isprintable() or character == "\n" for character in first + rest)


@pytest.mark.long("starts a command")
def test_ctrl_c_ends_it_with_130(tmp_path: Path) -> None:
    fill(tmp_path)
    with Claims(tmp_path), watching(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "quantkv: interrupted\n"


@pytest.mark.long("starts a command")
@pytest.mark.parametrize(("term", "control"), [("xterm", True), ("dumb", False)])
def test_a_terminal_is_redrawn_unless_it_is_dumb(tmp_path: Path, term: str, control: bool) -> None:
    fill(tmp_path)
    ours, theirs = pty.openpty()
    with watching(tmp_path, stdout=theirs, env={"TERM": term, "COLUMNS": "100"}) as process:
        os.close(theirs)
        assert process.wait(30) == 3
        text = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "2 finished" in text and ("\x1b[" in text) is control
