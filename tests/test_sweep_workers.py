"""Memory workers side by side: results as they come, failures apart, nothing left running."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from quantkv.measurements.memory.cells import WORKER, measure_memory


def test_results_arrive_with_their_cell_and_failures_stay_apart() -> None:
    def one(cell: int) -> dict[str, Any]:
        if cell == 2:
            raise MemoryError("no room")
        return {"memory": {"held_bytes": cell}, "effective": {}}

    got: dict[int, Any] = {}
    measure_memory([1, 2, 3], one, lambda cell, result: got.update({cell: result}), workers=2)
    assert {cell: (r["status"], r["reason"]) for cell, r in got.items()} == {
        1: ("ok", None),
        2: ("failed", "MemoryError: no room"),
        3: ("ok", None),
    }
    assert got[2]["memory"] is None and got[3]["memory"] == {"held_bytes": 3} and got[3]["seconds"] >= 0


def test_as_many_run_at_once_as_there_are_workers() -> None:
    meeting = threading.Barrier(2, timeout=60)

    def one(cell: int) -> dict[str, Any]:
        meeting.wait()
        return {"memory": {}}

    got: list[str] = []
    measure_memory([1, 2], one, lambda cell, result: got.append(result["status"]), workers=2)
    assert got == ["ok", "ok"]


def test_an_interruption_ends_the_worker_processes() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(120)", WORKER]
    sleepers: list[subprocess.Popen[bytes]] = []

    def one(cell: int) -> dict[str, Any]:
        if cell == 0:
            while not sleepers:
                time.sleep(0.01)
            return {"memory": {}}
        sleeper = subprocess.Popen(command)
        sleepers.append(sleeper)
        sleeper.wait()
        return {"memory": {}}

    def on_arm(cell: int, result: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_memory([0, 1, 2], one, on_arm, workers=2)
    assert sleepers and all(sleeper.returncode is not None for sleeper in sleepers)
