"""Memory: one real worker process, the worker's own arithmetic in this process, and workers that fail."""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
import types

import psutil
import pytest
import torch

from quantkv.errors import UnsupportedError
from quantkv.measurements.memory import peaks
from quantkv.measurements.memory import run as memory
from quantkv.measurements.memory import worker as memory_worker
from quantkv.measurements.memory.run import WorkerError, memory_cell

OPTIONS = {"name": "random-llama", "dtype": torch.float32}
ELEMENTS_PER_TOKEN = 2 * 2 * 2 * 32  # keys and values, layers, heads, head_dim of random-llama
can_reset = peaks.CLEAR_REFS.exists() and peaks._reset_high_water()


def job(**changes):
    base = {"model": {"name": "random-llama"}, "spec": "dynamic", "context": 100, "batch": 2, "steps": 3}
    return base | {"ids": None, "phases": ["prefill", "decode"], "threads": None} | changes


@pytest.mark.long("starts workers")
def test_a_worker_measures_a_format_in_a_process_of_its_own():
    answer = memory_cell(OPTIONS, "int4-head+r8+f16", context=200, steps=2, ids=torch.arange(250))
    found = answer["memory"]
    assert found["held_bytes"] == found["predicted_bytes"] >= found["used_bytes"] > 0
    assert found["baseline_16bit_bytes"] == 2 * ELEMENTS_PER_TOKEN * 200
    assert found["ratio_to_16bit"] == found["held_bytes"] / found["baseline_16bit_bytes"]
    assert (found["prefill_peak_bytes"] is None) is not can_reset
    assert (found["reserved_prefill_peak_bytes"], found["counter"]) == (None, "rss")
    assert answer["effective"]["spec"] == "int4-head+r8+f16"
    assert answer["effective"]["attn"] == "quantkv"


def test_the_baseline_holds_what_the_formula_says():
    answer = memory_worker.measure(job())
    found = answer["memory"]
    assert found["held_bytes"] == found["used_bytes"] == found["predicted_bytes"]
    assert found["held_bytes"] == 4 * ELEMENTS_PER_TOKEN * 100 * 2
    assert found["ratio_to_16bit"] == 2.0
    assert answer["effective"]["attn"] == answer["effective"]["engine"] == "sdpa"
    json.dumps(answer, allow_nan=False)


@pytest.mark.long("memory is measured by a worker that loads the model anew")
def test_a_phase_that_was_not_asked_for_is_null():
    found = memory_worker.measure(job(phases=["prefill"]))["memory"]
    assert found["decode_peak_bytes"] is None
    found = memory_worker.measure(job(phases=["decode"]))["memory"]
    assert found["prefill_peak_bytes"] is None


def test_weights_that_are_tied_count_once():
    first = torch.nn.Linear(4, 4, bias=False)
    both = torch.nn.Sequential(first, torch.nn.Linear(4, 4, bias=False))
    assert memory_worker.weights_bytes(both) == 2 * 64
    both[1].weight = first.weight
    assert memory_worker.weights_bytes(both) == 64


@pytest.mark.parametrize(
    "change, flag",
    [
        ({"held_bytes": 640}, "holds 640 bytes, predicted 600"),
        ({"ratio_to_16bit": 0.96}, "holds hardly less than a 16-bit cache"),
        ({"weights_bytes": 24_000}, "even a 16-bit cache is only 4.0% of cache and weights"),
    ],
)
def test_savings_that_mean_little_are_flagged(change, flag):
    good = {"held_bytes": 600, "predicted_bytes": 600, "baseline_16bit_bytes": 1000, "weights_bytes": 5000}
    good["ratio_to_16bit"] = 0.6
    assert memory_worker.flags(good, "int4-head") == []
    assert memory_worker.flags(good | change, "int4-head") == [flag]


@pytest.mark.skipif(not can_reset, reason="this system has no resettable high-water mark")
def test_each_phase_has_its_own_peak():
    meter = peaks.ResidentSet()
    meter.start()
    torch.ones(64 << 18)  # 64 MiB, given back at once
    assert meter.peak() > 50 << 20
    meter.start()
    assert meter.peak() < 30 << 20


FRAGMENTS = """
import torch
from quantkv.measurements.memory import peaks
MIB = 1 << 18  # float32
del (large := [torch.ones(30 * MIB)])[:]  # from here on glibc would take such blocks from its heap
held = [torch.ones(MIB) for _ in range(64)]
meter = peaks.ResidentSet()
meter.start()
more = [torch.ones(MIB) for _ in range(64)]
del more[::2]
larger = [torch.ones(MIB + MIB // 2) for _ in range(32)]
print(meter.peak() / 2**20)
"""


@pytest.mark.long("starts a process")
@pytest.mark.skipif(not can_reset, reason="this system has no resettable high-water mark")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other settings")
def test_holes_that_nothing_fits_into_are_in_no_peak():
    """64 MiB, half of them freed, and 48 MiB in blocks too large for the holes: 80 MiB are in use at the end,
    where a heap would still hold 112."""
    command = [sys.executable, "-c", FRAGMENTS]
    done = subprocess.run(command, env=memory._environment(), capture_output=True, text=True, check=True)
    assert 78 < float(done.stdout) < 90


def test_a_counter_that_the_system_lacks_is_null(monkeypatch, tmp_path):
    monkeypatch.setattr(peaks, "CLEAR_REFS", tmp_path / "no folder" / "file")
    meter = peaks.ResidentSet()
    meter.start()
    assert meter.peak() is None


def test_a_worker_that_takes_too_long_is_stopped():
    with pytest.raises(WorkerError, match=r"longer than 0\.1 s"):
        memory_cell(OPTIONS, "dynamic", context=64, timeout=0.1)


PARENT = """
import torch
from quantkv.measurements.memory.run import memory_cell
memory_cell({"name": "random-llama"}, "dynamic", context=64, steps=100_000)
"""


@pytest.mark.long("starts a worker")
def test_a_worker_ends_with_its_parent_and_leaves_no_folder(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=environment)
    worker = until(lambda: next(iter(psutil.Process(parent.pid).children()), None))
    until(lambda: list(tmp_path.glob("quantkv-memory-*/job.json")))
    parent.kill()
    parent.wait()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    assert not list(tmp_path.glob("quantkv-memory-*"))


def until(what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_worker_writes_why_it_failed(tmp_path):
    job_file, result_file = tmp_path / "job.json", tmp_path / "result.json"
    job_file.write_text(json.dumps(job(model={"name": "random-nothing"})))
    assert memory_worker.main([str(job_file), str(result_file)]) == 0
    assert "random-nothing" in json.loads(result_file.read_text())["error"]


@pytest.mark.parametrize(
    "code, message",
    [
        (-9, "killed by SIGKILL, as when memory runs out"),
        (-15, "killed by SIGTERM"),
        (1, "exit code 1: it broke"),
    ],
)
def test_a_worker_that_dies_says_how(monkeypatch, code, message):
    dead = contextlib.nullcontext(types.SimpleNamespace(returncode=code))
    monkeypatch.setattr(memory.subprocess, "Popen", lambda *a, **k: dead)
    monkeypatch.setattr(memory, "output", lambda *a: ("", "it broke\n"))
    with pytest.raises(WorkerError, match=message):
        memory_cell(OPTIONS, "dynamic", context=64)


def test_a_function_stores_nothing():
    with pytest.raises(UnsupportedError, match="stores nothing"):
        memory_cell(OPTIONS, lambda x: x, context=64)
