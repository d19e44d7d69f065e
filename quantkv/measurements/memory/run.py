"""Memory of a cache format: bytes held, peaks of prefill and decoding, each arm in a process of its own.

A peak belongs to a process: what an earlier arm left in the allocator, or freed and never gave back, would be
counted too. So every cell loads and warms the model in a fresh worker and measures over that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from quantkv.arms.arm import Format, Result, is_function, parse_format, spec_text
from quantkv.errors import UnsupportedError
from quantkv.instruments.processes import lifeline, output
from quantkv.measurements.running import check_local
from quantkv.peers.peer import Peer

PHASES = ("prefill", "decode")
STDERR_LINES = 5
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""For glibc in a worker: blocks of 64 KiB or more are mapped one by one, and so leave the resident set the
moment they are freed. By default they come from a heap whose holes depend on addresses drawn at start, which
made the peaks of equal runs differ by a factor of three."""


class WorkerError(RuntimeError):
    """A memory worker that gave no result; the message says why."""


def memory_cell(
    model_options: Mapping[str, Any],
    spec: Format,
    *,
    context: int,
    batch: int = 1,
    steps: int = 32,
    ids: Tensor | None = None,
    timeout: float | None = 600,
    phases: Sequence[str] = PHASES,
    threads: int | None = None,
) -> dict[str, Result]:
    """Measure one arm in a fresh process; returns the `memory` and `effective` sections of its row.

    `model_options` are the arguments of `load_model`, its name as `name`. `ids` are prefilled and then fed
    (random ones when None). Raises WorkerError when the worker fails, is killed or takes too long.
    """
    parsed = parse_format(spec)
    if is_function(parsed):
        raise UnsupportedError("a plain function stores nothing: it has a quality but no memory")
    if isinstance(parsed, Peer):
        check_local(parsed)
    job = {
        "model": {name: _plain_option(value) for name, value in model_options.items()},
        "spec": spec_text(parsed),
        "context": context,
        "batch": batch,
        "steps": steps,
        "ids": None if ids is None else ids.flatten()[: batch * (context + steps)].tolist(),
        "phases": list(phases),
        "threads": threads,
    }
    with tempfile.TemporaryDirectory(prefix="quantkv-memory-") as folder:
        return _run_worker(job, Path(folder), timeout)


def _plain_option(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | dict | None) else str(value).removeprefix("torch.")


def _run_worker(job: dict[str, Any], folder: Path, timeout: float | None) -> dict[str, Result]:
    job_file, result_file = folder / "job.json", folder / "result.json"
    job_file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "quantkv.measurements.memory.worker", str(job_file), str(result_file)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        with (
            lifeline() as stdin,
            subprocess.Popen(command, stdin=stdin, env=_environment(), **options) as worker,
        ):
            _, stderr = output(worker, timeout)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"the memory worker took longer than {timeout:g} s and was stopped") from None
    if worker.returncode != 0 or not result_file.exists():
        raise WorkerError(_why(worker.returncode, stderr))
    answer = json.loads(result_file.read_text())
    if "error" in answer:
        raise WorkerError(answer["error"])
    return answer


def _environment() -> dict[str, str]:
    """The worker imports the same quantkv as this process, installed or not, and frees at once."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return os.environ | ALLOCATOR | {"PYTHONPATH": path}


def _why(code: int, stderr: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", as when memory runs out" if name == "SIGKILL" else ""
        return f"the memory worker was killed by {name}{hint}"
    tail = " | ".join(stderr.strip().splitlines()[-STDERR_LINES:])
    return f"the memory worker ended with exit code {code}: {tail or 'no message'}"
