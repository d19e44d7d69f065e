"""Memory cells side by side: each is a process of its own, so one says nothing about another's peak."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import psutil

from quantkv.arms.arm import failure

T = TypeVar("T")
WORKER = "quantkv.measurements.memory.worker"


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
    begin = time.perf_counter()
    try:
        sections = one(cell)
    except Exception as error:
        return failure("memory", error, time.perf_counter() - begin)
    return {"status": "ok", "reason": None, **sections, "seconds": time.perf_counter() - begin}


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
