"""The cells of memory, side by side: each is a process that loads a model of its own, so one says nothing
about another's peak."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import psutil
import torch

from quantkv.measurements.kind import OnCell, Step
from quantkv.measurements.memory.run import memory_cell
from quantkv.measurements.memory.settings import STEPS, MemorySettings
from quantkv.measurements.running import Running
from quantkv.measurements.timed import OfMachine
from quantkv.rows.cell import Cell

T = TypeVar("T")
WORKER = "quantkv.measurements.memory.worker"


class MemoryCells(OfMachine):
    asked: MemorySettings

    @property
    def threads(self) -> int:
        """Those of torch, shared out among the workers."""
        return max(1, torch.get_num_threads() // self.asked.workers)

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        """The model goes first, so that there is room."""
        self.loaded.release()
        measure_memory(cells, self._one, on_cell, self.asked.workers)

    def _one(self, cell: Cell) -> Mapping[str, Any]:
        """The worker picks the attention: the fused one for formats, the stock one for the baseline."""
        entry = self.loaded.entry
        return memory_cell(
            {"name": entry.location, **entry.options, "attn": None},
            self.loaded.arm(cell),
            context=cell.context,
            batch=cell.batch,
            steps=STEPS,
            ids=self.feed(cell.batch * (cell.context + STEPS), cell.seed),
            timeout=self.loaded.cell_timeout,
            phases=self.asked.phases,
            threads=self.threads,
        )


def measure_memory(
    cells: Iterable[T],
    one: Callable[[T], Mapping[str, Any]],
    on_arm: Callable[[T, Mapping[str, Any]], None],
    workers: int,
) -> None:
    """Run ``one`` for every cell, ``workers`` at a time; each result is handed over as soon as it is there.

    When this is interrupted the worker processes are ended, so that nothing is waited for.
    """
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_timed, one, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                on_arm(futures[future], future.result())
        except BaseException:
            _give_up(futures)
            raise


def _timed(one: Callable[[T], Mapping[str, Any]], cell: T) -> dict[str, Any]:
    arm = Running("", "")
    found = arm.attempt(lambda _: one(cell)) or {}
    return arm.result("memory", found.get("memory"), found.get("effective"))


def _give_up(futures: Collection[Future[Any]]) -> None:
    """End the workers, those too that a thread of the pool was just about to start."""
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if WORKER in child.cmdline():
                    child.kill()
        time.sleep(0.05)
