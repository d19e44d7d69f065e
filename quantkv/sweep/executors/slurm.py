"""A sweep as an array of Slurm jobs, submitted by submitit: every job is a worker on the shared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from quantkv.errors import QuantKVError
from quantkv.sweep.answers import Tried
from quantkv.sweep.config import Slurm, Sweep
from quantkv.sweep.run import apart, needed, share, whole
from quantkv.sweep.summary import Summary
from quantkv.wording.streams import print_line


class Job:
    """What a job calls. A job that is preempted, or about to reach its time limit, is queued again."""

    def __call__(self, sweep: Sweep, tried: Tried) -> Summary:
        return share(sweep, tried)

    def checkpoint(self, sweep: Sweep, tried: Tried) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, sweep, tried)


def run(sweep: Sweep, console: Console) -> Summary:
    """Submit the jobs and wait for them; an interruption cancels them."""
    submitit, settings = needed("submitit", "slurm"), sweep.run.slurm
    out = Path(sweep.run.out).resolve()
    jobs = _submit(submitit, settings, apart(sweep), out)
    print_line(f"{len(jobs)} jobs, logs in {out / '.jobs'}", console)
    try:
        parts, lost = _collect(submitit, jobs)
    except KeyboardInterrupt:
        for job in jobs:
            job.cancel()
        return Summary(Path(sweep.run.out), interrupted=True)
    return whole(sweep, parts, lost, console, worker="job", end="came to no end")


def _submit(submitit: Any, settings: Slurm, sweep: Sweep, out: Path) -> list[Any]:
    try:
        executor = submitit.AutoExecutor(folder=out / ".jobs", cluster=settings.cluster)
        executor.update_parameters(name="quantkv", **settings.parameters)
    except (RuntimeError, TypeError, NameError, ValueError) as error:
        raise QuantKVError(f"run.slurm: {' '.join(str(error).split())}") from None
    tried = Tried(out)
    with executor.batch():
        return [executor.submit(Job(), sweep, tried) for _ in range(settings.workers)]


def _collect(submitit: Any, jobs: list[Any]) -> tuple[list[Summary], list[str]]:
    parts: list[Summary] = []
    lost: list[str] = []
    for job in jobs:
        error = job.exception()
        if error is None:
            parts.append(job.result())
        else:
            lost.append(" ".join(str(error).split("\n")[-1].split()) or type(error).__name__)
    return parts, lost
