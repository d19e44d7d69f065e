"""A sweep on Ray: actors that keep their models warm, on the GPUs or CPUs of one machine or of a cluster.

Ray places the actors, hands each its share of a GPU, and starts again those that are lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console

from quantkv.errors import QuantKVError
from quantkv.sweep.answers import Tried
from quantkv.sweep.config import Ray, Sweep
from quantkv.sweep.run import apart, needed, share, whole
from quantkv.sweep.summary import Summary
from quantkv.wording.streams import print_line


class Actor:
    def run(self, sweep: Sweep, tried: Tried) -> Summary:
        return share(sweep, tried)


def run(sweep: Sweep, console: Console) -> Summary:
    """Work off the sweep; the driver measures nothing itself."""
    ray, settings = needed("ray", "ray"), sweep.run.ray
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_worker_niceness", "0")  # a worker that gives way measures others' load
        ray.init(address=settings.address, include_dashboard=False, logging_level="warning")
    try:
        return _run(ray, sweep, settings, console)
    finally:
        if ours:
            ray.shutdown()


def _run(ray: Any, sweep: Sweep, settings: Ray, console: Console) -> Summary:
    count, resources = placement(ray.cluster_resources(), settings)
    again = {"max_restarts": settings.retries, "max_task_retries": settings.retries}
    actor = ray.remote(Actor).options(**resources, **again)
    tried = Tried(Path(sweep.run.out).resolve())
    print_line(f"{count} ray workers, each with {_words(resources)}", console)
    actors = [actor.remote() for _ in range(count)]
    parts, lost = _collect(ray, [worker.run.remote(apart(sweep), tried) for worker in actors])
    return whole(sweep, parts, lost, console, worker="ray worker", end="was lost")


def placement(cluster: dict[str, float], settings: Ray) -> tuple[int, dict[str, float]]:
    """How many actors there are, and the CPUs and GPUs of each: by default a whole GPU where there is one."""
    gpus = settings.gpus if settings.gpus is not None else float(cluster.get("GPU", 0) > 0)
    if gpus > cluster.get("GPU", 0):
        raise QuantKVError(f"run.ray.gpus: {gpus:g} for each worker, but ray has {cluster.get('GPU', 0):g}")
    most = cluster.get("GPU", 0) / gpus if gpus else cluster.get("CPU", 1) / settings.cpus
    resources = {"num_cpus": settings.cpus} | ({"num_gpus": gpus} if gpus else {})
    return settings.workers or max(1, int(most)), resources


def _collect(ray: Any, waiting: list[Any]) -> tuple[list[Summary], list[str]]:
    """What the workers did, and why others came to no end. A wrong setting is the same for all of them."""
    parts: list[Summary] = []
    lost: list[str] = []
    while waiting:
        (done,), waiting = ray.wait(waiting, num_returns=1)
        try:
            parts.append(ray.get(done))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, QuantKVError):
                raise QuantKVError(str(error.cause)) from None
            raise
        except ray.exceptions.RayError as error:
            lost.append(str(error).splitlines()[0])
    return parts, lost


def _words(resources: dict[str, float]) -> str:
    units = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return ", ".join(f"{value:g} {units[name]}" for name, value in resources.items())
