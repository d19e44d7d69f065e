"""The process behind ``ProcessSession``: opens a model, measures what it is asked, sends results at once.

It ends when its connection does, and when the process that started it is gone, even while native code keeps
the interpreter to itself. Ctrl-C is for that process to handle.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments.processes import end_with_parent
from quantkv.measurements.kind import Result
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep
from quantkv.sweep.failures import describe
from quantkv.sweep.runner import Measure, Session

PR_SET_PDEATHSIG = 1


class Worker:
    """Answers requests; each is a method's name and its arguments."""

    def __init__(self, link: Connection, measure: Measure) -> None:
        self.link, self.measure = link, measure
        self.session: Session | None = None

    def preflight(self, sweep: Sweep) -> None:
        self.measure.preflight(sweep)

    def open(self, model: ModelEntry, sweep: Sweep) -> None:
        self.session = self.measure.open(model, sweep)

    def know(self, cell: Cell) -> tuple[Any, Any]:
        """The cell's facts, and its row as it is should the measurement break off."""
        session = self._opened
        unmeasured = {"status": "failed", "reason": None, "seconds": 0.0}
        return dict(session.facts(cell)), session.row(cell, unmeasured, "")

    def check(self, cell: Cell) -> None:
        self._opened.check(cell)

    def measure_cells(self, cells: tuple[Cell, ...]) -> None:
        """Send the row of each cell and its per-token arrays the moment they are known."""
        index = {cell: number for number, cell in enumerate(cells)}

        def on_arm(cell: Cell, result: Result) -> None:
            row = self._opened.row(cell, result, "")
            slim = {name: result.get(name) for name in ("status", "reason", "seconds", "tokens")}
            self.link.send(("arm", index[cell], slim | {"row": row}))

        def step(what: str, done: int, total: int) -> None:
            self.link.send(("step", what, done, total))

        self._opened.measure(cells, on_arm, step)

    @property
    def _opened(self) -> Session:
        assert self.session is not None, "open comes first"
        return self.session

    def serve(self) -> None:
        while True:
            try:
                name, arguments = self.link.recv()
            except EOFError:
                return
            self.link.send(_answer(getattr(self, name), arguments))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "done", function(*arguments)
    except UnsupportedError as error:
        return "unsupported", str(error)
    except QuantKVError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", describe(error)


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    if sys.platform == "linux":  # elsewhere a thread alone watches, for which native code must make way
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    link = Connection(descriptor)
    origin, threads = link.recv()
    import torch

    torch.set_num_threads(threads)
    module, _, name = origin.partition(":")
    Worker(link, getattr(import_module(module), name)()).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
