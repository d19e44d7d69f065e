"""Measuring in a process of its own, one per model: what it does to itself, it does not do to the sweep.

A worker that is killed, crashes, or overruns a time limit (native code included, since it is killed from
outside) costs the cell it was in; the next request starts another, which loads the model again.

By hand, since pools (concurrent.futures, loky, pebble) give one result for a task: no row the moment it is
known, no limit for each arm, and no telling which arm a process died in; and multiprocessing runs the user's
script again in its children, where that has no ``__main__`` guard.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import Any

import torch

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments.processes import TICK_SECONDS, AwakeClock, lifeline
from quantkv.measurements.kind import OnCell, Result, Step
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row
from quantkv.rows.kinds import known
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep
from quantkv.sweep.failures import CellTimeout, MeasureError, WorkerLost, end_of_process, memory_kills

LOCAL = "quantkv.sweep.local:LocalMeasure"
PATIENCE_SECONDS = 10.0
"""For a worker to end by itself before it is killed."""


class Connected:
    """A worker process and the line to it."""

    def __init__(self, origin: str) -> None:
        ours, theirs = socketpair()
        with ExitStack() as kept, theirs:
            stdin = kept.enter_context(lifeline())
            command = [sys.executable, "-m", "quantkv.sweep.worker", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, stdin=stdin, pass_fds=[theirs.fileno()], env=_environment()
            )
            self._lifeline = kept.pop_all()
        self.link, self._kills = Connection(ours.detach()), memory_kills()
        self.end = weakref.finalize(self, _end, self.process, self.link, self._lifeline)
        self.send(origin, torch.get_num_threads())

    @property
    def alive(self) -> bool:
        return self.end.alive

    def send(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # that it is gone shows when it is listened to
            self.link.send(message)

    def receive(self, seconds: float | None) -> Any:
        """The next message, None when there is none in time; raises WorkerLost when there will be none."""
        try:
            return self.link.recv() if self.link.poll(seconds) else None
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_SECONDS)
            code, reclaimed = self.process.poll(), memory_kills() > self._kills
            self.end()  # after its exit code is read: one that still runs is killed here
            if code is None:
                raise WorkerLost("the worker no longer answers") from None
            raise WorkerLost(end_of_process(code, reclaimed=reclaimed)) from None

    def ask(self, name: str, *arguments: Any) -> Any:
        self.send(name, arguments)
        return _value(self.receive(None))

    def close(self) -> None:
        """Let it end by itself, so that it clears up after itself."""
        self.link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_SECONDS)
        self.end()


class CellClock:
    """Seconds used by each arm of a block; what the arms share has the limits of all of them together. Only
    time in which this process ran counts."""

    def __init__(self, labels: Collection[str], limit: float | None) -> None:
        self._labels, self._limit = labels, limit
        self._used: dict[str | None, float] = defaultdict(float)
        self._clock = AwakeClock()
        self.running: str | None = None

    def turn(self, what: str | None) -> None:
        """From now on ``what`` runs: an arm, or something that they share."""
        self._tick()
        self.running = what if what in self._labels else None

    @property
    def limit(self) -> float | None:
        """Seconds that what runs now may take in all."""
        if self._limit is None or self.running is not None:
            return self._limit
        return self._limit * len(self._labels)

    @property
    def spent(self) -> float:
        """Seconds that what runs now has taken: the arm, or else the whole block."""
        self._tick()
        return sum(self._used.values()) if self.running is None else self._used[self.running]

    def left(self) -> float:
        """Seconds until what runs now has used up its limit, at least 0; infinite without a limit."""
        self._tick()
        return math.inf if self.limit is None else max(0.0, self.limit - self._used[self.running])

    def _tick(self) -> None:
        self._used[self.running] += self._clock.passed()


class ProcessMeasure:
    """``origin`` names what measures in the workers, as module:name."""

    def __init__(self, origin: str = LOCAL) -> None:
        self.origin = origin
        self._ready: Connected | None = None

    def preflight(self, sweep: Sweep) -> None:
        try:
            self._ready = self.start(sweep)
        except (WorkerLost, MeasureError) as error:
            raise QuantKVError(f"cannot measure here: {error}") from error

    def start(self, sweep: Sweep) -> Connected:
        """A worker that knows the sweep; the one of the preflight serves first."""
        worker, self._ready = self._ready, None
        if worker is None:
            worker = Connected(self.origin)
            worker.ask("preflight", sweep)
        return worker

    def open(self, model: ModelEntry, sweep: Sweep) -> ProcessSession:
        return ProcessSession(self, model, sweep)


class ProcessSession:
    """A model in a worker, which is started again when it is gone."""

    def __init__(self, workers: ProcessMeasure, model: ModelEntry, sweep: Sweep) -> None:
        self.workers, self.model, self.sweep = workers, model, sweep
        self._worker: Connected | None = None
        self._unmeasured: dict[Cell, Row] = {}
        self._opened()

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        facts, self._unmeasured[cell] = self._opened().ask("know", cell)
        return facts

    def check(self, cell: Cell) -> None:
        self._opened().ask("check", cell)

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        """Kinds whose cells are processes of their own keep to the limit themselves."""
        limit = None if known(cells[0].kind).alone else self.sweep.run.cell_timeout
        self._measure(cells, on_cell, step, limit)

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        row = result.get("row") or self._row_without_numbers(cell, result.get("seconds") or 0.0)
        return {**row, "key": key, "status": result["status"], "reason": result.get("reason")}

    def close(self) -> None:
        if self._worker is not None and self._worker.alive:
            self._worker.close()

    def _opened(self) -> Connected:
        if self._worker is None or not self._worker.alive:
            self._worker = self.workers.start(self.sweep)
            self._worker.ask("open", self.model, self.sweep)
        return self._worker

    def _measure(self, cells: Sequence[Cell], on_arm: OnCell, step: Step, limit: float | None) -> None:
        worker = self._opened()
        clock = CellClock([cell.label for cell in cells], limit)
        try:
            worker.send("measure_cells", (cells,))
            self._listen(worker, clock, cells, on_arm, step)
        except WorkerLost as lost:
            raise WorkerLost(str(lost), clock.running, clock.spent) from None
        except QuantKVError:
            raise
        except BaseException:  # memory that ran out, a device in a bad state, an interruption: begin afresh
            worker.end()
            raise

    def _listen(
        self, worker: Connected, clock: CellClock, cells: Sequence[Cell], on_arm: OnCell, step: Step
    ) -> None:
        while True:
            left = clock.left()
            message = worker.receive(min(left, TICK_SECONDS))
            if message is None and left > 0:
                continue
            if message is None:
                words = f"took longer than the cell_timeout allows ({clock.limit:g} s)"
                raise CellTimeout(words, clock.running, clock.spent)
            if message[0] == "step":
                clock.turn(message[1])
                step(*message[1:])
            elif message[0] == "arm":
                clock.turn(None)
                on_arm(cells[message[1]], message[2])
            else:
                return _value(message)

    def _row_without_numbers(self, cell: Cell, seconds: float) -> Row:
        row = self._unmeasured[cell]
        started = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        clock = {"seconds": round(seconds, 3), "started": started.isoformat(timespec="seconds")}
        return {**row, "provenance": {**row["provenance"], **clock}}


def _value(message: tuple[str, Any]) -> Any:
    outcome, value = message
    if outcome == "done":
        return value
    raise {"unsupported": UnsupportedError, "refused": QuantKVError}.get(outcome, MeasureError)(value)


def _environment() -> dict[str, str]:
    """The worker finds what this process finds, installed or not."""
    root = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys([root, *filter(None, sys.path)]))}


def _end(process: subprocess.Popen[bytes], link: Connection, stdin: ExitStack) -> None:
    """Kill it: its results have arrived, and what it was in has been given up."""
    process.kill()
    process.wait()
    link.close()
    stdin.close()
