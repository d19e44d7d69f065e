"""Time of cells: limits hold while a sweep runs, not while it is stopped, and failures say what they took."""

from __future__ import annotations

import math
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure, sweep

from quantkv.instruments.processes import LONGEST_SECONDS, TICK_SECONDS, output
from quantkv.rows.files import read_rows
from quantkv.sweep.failures import CellTimeout
from quantkv.sweep.grid import expand
from quantkv.sweep.process import CellClock, ProcessSession
from quantkv.sweep.run import run_sweep

FROZEN = 5000.0


class Time:
    """A clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


class Talking:
    """A worker that says what it is given, and is silent (None) or lets us freeze (a number) in between."""

    def __init__(self, clock: Time, *messages: Any) -> None:
        self.clock, self.messages = clock, list(messages)

    def receive(self, seconds: float) -> Any:
        said = self.messages.pop(0) if self.messages else None
        if isinstance(said, tuple):
            return said
        self.clock.now += seconds if said is None else said
        return None


def listen(worker: Talking, limit: float | None, tmp_path: Path) -> list[Any]:
    cells = tuple(expand(sweep(tmp_path, speed=None, memory=None, contexts=64)))
    heard: list[Any] = []
    session: Any = object.__new__(ProcessSession)
    labels = CellClock([cell.label for cell in cells], limit)
    session._listen(worker, labels, cells, lambda cell, result: heard.append(result), lambda *_: None)
    return heard


def test_a_process_that_was_stopped_has_not_used_its_time(tmp_path: Path, clock: Time) -> None:
    frozen = Talking(clock, ("step", "int8-head", 0, 1), FROZEN, None, ("arm", 0, {}), FROZEN, ("done", None))
    assert listen(frozen, 5, tmp_path) == [{}]
    assert clock.now > FROZEN


@pytest.mark.parametrize("limit", [0.5, 3, 600])
def test_a_worker_that_hangs_is_given_up_after_its_time(tmp_path: Path, clock: Time, limit: float) -> None:
    hangs = Talking(clock, ("step", "int4-head", 0, 1))
    with pytest.raises(CellTimeout, match=rf"cell_timeout allows \({limit:g} s\)") as caught:
        listen(hangs, limit, tmp_path)
    assert (caught.value.label, caught.value.seconds, clock.now) == ("int4-head", limit, limit)


def test_a_memory_worker_keeps_to_the_same_rule(clock: Time) -> None:
    class Process:
        def __init__(self, *gaps: float) -> None:
            self.gaps, self.killed = list(gaps), 0

        def communicate(self, timeout: float) -> tuple[str, str]:
            if not self.gaps:
                return "out", ""
            clock.now += min(timeout, gap) if (gap := self.gaps.pop(0)) < FROZEN else gap
            raise subprocess.TimeoutExpired("worker", timeout)

        def kill(self) -> None:
            self.killed += 1

        def wait(self) -> None: ...

    for limit in (5.0, None):
        assert output(Process(1.0, FROZEN, 1.0), limit) == ("out", "")  # type: ignore[arg-type]
    hanging = Process(*[1.0] * 100)
    begin = clock.now
    with pytest.raises(subprocess.TimeoutExpired):
        output(hanging, 7.5)  # type: ignore[arg-type]
    assert clock.now - begin == 7.5 and hanging.killed == 1


def test_time_spent_is_the_arms_or_all_of_it(clock: Time) -> None:
    cells = CellClock(["a", "b"], None)
    for what, seconds in ((None, 1.0), ("a", 0.5), ("b", 1.5), ("a", TICK_SECONDS)):
        cells.turn(what)
        clock.now += seconds
    assert (cells.spent, cells.left()) == (0.5 + TICK_SECONDS, math.inf)
    cells.turn("prefill")
    assert cells.spent == 1 + 0.5 + 1.5 + TICK_SECONDS
    clock.now += FROZEN
    assert cells.spent == 3 + TICK_SECONDS + LONGEST_SECONDS


class Slow(FakeMeasure):
    """Whatever is asked of it takes a while and fails."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def open(self, model: Any, sweep: Any) -> Any:
        session = super().open(model, sweep)
        if self.where == "open":
            self.fail()
        setattr(session, self.where, self.fail)
        return session

    def fail(self, *_: Any) -> Any:
        time.sleep(0.02)
        raise ArithmeticError("no")


@pytest.mark.parametrize("where", ["open", "facts", "check", "measure"])
def test_so_does_one_that_fails_before_or_as_a_whole(tmp_path: Path, where: str) -> None:
    settings = sweep(tmp_path, speed=None, memory=None, contexts=64, formats="int8-head")
    run_sweep(settings, measure=Slow(where))
    (row,) = read_rows(tmp_path)
    assert row["status"] == "failed" and 0.02 <= row["provenance"]["seconds"] < 60
