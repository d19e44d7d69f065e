"""Several workers on one folder: processes that share it, shards, Ray actors and jobs of submitit."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure, sweep
from rich.console import Console

from quantkv.errors import QuantKVError
from quantkv.instruments.processes import lifeline
from quantkv.rows.files import Row, read_rows
from quantkv.rows.row import strict_json
from quantkv.sweep.config import Ray, Sweep, validate
from quantkv.sweep.executors.ray import placement
from quantkv.sweep.grid import blocks, expand, of_shard, planned
from quantkv.sweep.run import run_sweep
from quantkv.sweep.summary import Summary, together

CONTEXTS = [64, 128, 256]
CELLS = 3 * (2 + 3 + 3)
"""Quality of two formats, speed and memory of the baseline too, at three contexts."""

CHILD = """
import os, sys, time
sys.path.insert(0, {tests!r})
from fake_measure import FakeMeasure, sweep
from quantkv.sweep.run import run_sweep
def slow(cell):
    with open({log!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{cell.kind}} {{cell.label}} {{cell.context}}\\n")
    time.sleep({pause})
summary = run_sweep(sweep({out!r}, contexts={contexts}), measure=FakeMeasure(slow))
sys.exit(summary.exit_code or (9 if summary.unfinished else 0))
"""


class Crew:
    """Workers on one folder, each in a process of its own."""

    def __init__(self, folder: Path, stdin: int, pause: float) -> None:
        self.out, self.log, self.stdin = folder / "results", folder / "log", stdin
        self.log.touch()
        names = {"tests": str(Path(__file__).parent), "log": str(self.log), "out": str(self.out)}
        self.code = CHILD.format(**names, pause=pause, contexts=CONTEXTS)
        self.workers: list[subprocess.Popen[bytes]] = []

    def hire(self, count: int) -> None:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-c", self.code]
        options: dict[str, Any] = {"stdin": self.stdin, "stdout": subprocess.DEVNULL, "env": environment}
        self.workers += [subprocess.Popen(command, **options) for _ in range(count)]

    def begun(self) -> list[tuple[int, str]]:
        """(process, cell) for every cell that was begun, in order."""
        parts = (line.partition(" ") for line in self.log.read_text().splitlines())
        return [(int(process), cell) for process, _, cell in parts]

    def wait(self) -> list[int]:
        return [worker.wait(timeout=240) for worker in self.workers]


@contextmanager
def crew(folder: Path, pause: float) -> Iterator[Crew]:
    with lifeline() as stdin:
        found = Crew(folder, stdin, pause)
        try:
            yield found
        finally:
            for worker in found.workers:
                worker.kill()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 240
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_workers_on_one_folder_measure_every_cell_once(tmp_path: Path, count: int) -> None:
    with crew(tmp_path, pause=0.2) as workers:
        workers.hire(count)
        assert workers.wait() == [0] * count
    begun = Counter(cell for _, cell in workers.begun())
    assert len(begun) == CELLS and set(begun.values()) == {1}
    assert len({process for process, _ in workers.begun()}) > 1, "one worker did all of it"
    rows = read_rows(workers.out)
    assert len(rows) == CELLS == len(list(workers.out.glob("*.json")))
    assert {row["status"] for row in rows} == {"ok"} and not (workers.out / ".claims").exists()


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    with crew(tmp_path, pause=0.4) as workers:
        workers.hire(3)
        until(lambda: len({process for process, _ in workers.begun()}) > 1 and len(workers.begun()) > 6)
        victim = next(w for w in workers.workers if w.pid == workers.begun()[-1][0])
        victim.kill()
        assert sorted(workers.wait()) == [-9, 0, 0]
    begun = Counter(cell for _, cell in workers.begun())
    assert len(begun) == CELLS and sum(begun.values()) <= CELLS + 1, "only the cell it was in is begun again"
    lost = [cell for process, cell in workers.begun() if process == victim.pid][-1]
    assert begun[lost] == 2 or sum(begun.values()) == CELLS
    rows = read_rows(workers.out)
    assert len(rows) == CELLS and {row["status"] for row in rows} == {"ok"}
    assert not (workers.out / ".claims").exists()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
def test_shards_are_whole_blocks_and_together_the_whole(count: int) -> None:
    cells = expand(sweep("r", contexts=[64, 128, 256, 512], seeds=[0, 1], batch_sizes=[1, 4]))
    shards = [of_shard(cells, number + 1, count) for number in range(count)]
    assert sorted(id(cell) for shard in shards for cell in shard) == sorted(map(id, cells))
    assert shards == [of_shard(cells, number + 1, count) for number in range(count)]
    whole = {tuple(id(cell) for cell in block.cells) for block in blocks(cells)}
    for shard in shards:
        assert {tuple(id(cell) for cell in block.cells) for block in blocks(shard)} <= whole


def test_shards_are_near_even_though_contexts_differ() -> None:
    """Dealt out in turn, three shards of three contexts would each hold one context."""
    cells = expand(sweep("r", contexts=[64, 128, 256]))
    loads = [sum(cell.context for cell in of_shard(cells, number, 3)) for number in (1, 2, 3)]
    assert sum(loads) == (2 + 3 + 3) * (64 + 128 + 256)
    assert max(loads) - min(loads) <= 3 * 256, "no more than the largest block"


def test_a_shard_measures_its_share_and_the_others_the_rest(tmp_path: Path) -> None:
    measured = []
    for shard in ("1/2", "2/2"):
        measure, settings = FakeMeasure(), sweep(tmp_path, run={"out": str(tmp_path), "shard": shard})
        summary = run_sweep(settings, measure=measure, console=Console(file=io.StringIO()))
        assert summary.total == len(measure.measured) == len(planned(settings)) > 0
        measured += measure.measured
    assert len(measured) == len(set(measured)) == len(read_rows(tmp_path)) == len(expand(settings))


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_wrong_shard_says_what_is_legal(shard: str) -> None:
    with pytest.raises(QuantKVError, match=r"run\.shard: '.*' is no share; legal: 1/4 for the first of four"):
        sweep("r", run={"out": "r", "shard": shard})


@pytest.mark.parametrize(
    ("cluster", "settings", "count", "resources"),
    [
        ({"CPU": 8.0}, {}, 8, {"num_cpus": 1}),
        ({"CPU": 8.0}, {"cpus": 3}, 2, {"num_cpus": 3}),
        ({"CPU": 8.0, "GPU": 4.0}, {}, 4, {"num_cpus": 1, "num_gpus": 1.0}),
        ({"CPU": 8.0, "GPU": 2.0}, {"gpus": 0.5}, 4, {"num_cpus": 1, "num_gpus": 0.5}),
        ({"CPU": 8.0, "GPU": 4.0}, {"workers": 2, "gpus": 2}, 2, {"num_cpus": 1, "num_gpus": 2.0}),
        ({"CPU": 1.0}, {"cpus": 2}, 1, {"num_cpus": 2}),
    ],
)
def test_ray_workers_fill_the_gpus_or_else_the_cpus(
    cluster: dict[str, float], settings: dict[str, Any], count: int, resources: dict[str, float]
) -> None:
    assert placement(cluster, Ray(**settings)) == (count, resources)


def test_more_gpus_than_there_are_is_an_error() -> None:
    with pytest.raises(QuantKVError, match=r"run\.ray\.gpus: 2 for each worker, but ray has 1"):
        placement({"CPU": 4.0, "GPU": 1.0}, Ray(gpus=2))


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_absent_extra_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(QuantKVError) as caught:
        run_sweep(sweep(tmp_path, run={"out": str(tmp_path), "executor": name}))
    assert f"pip install 'quantkv[{name}]'" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.long("starts a sweep")
def test_no_executor_is_imported_by_a_local_sweep() -> None:
    code = (
        "import sys, quantkv.sweep.run, quantkv.sweep.process; "
        "print([name for name in ('ray', 'submitit', 'transformers') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]", done.stderr


def test_several_summaries_are_one(tmp_path: Path) -> None:
    """Counts are read from the rows: a worker that was lost, and told nothing, counts too."""
    settings = sweep(tmp_path, contexts=[64])
    whole = run_sweep(settings, measure=FakeMeasure(), console=Console(file=io.StringIO()))
    half = Summary(tmp_path, total=whole.total, finished_before=3, keys=whole.keys, elsewhere=2)
    late = Summary(tmp_path, total=whole.total, finished_before=5, keys=whole.keys)
    joined = together(tmp_path, [half, late])
    assert (joined.total, joined.finished_before, joined.counts["ok"]) == (8, 3, 5)
    assert joined.unfinished == 0 and joined.exit_code == 0


def real(out: Path, **run: Any) -> Sweep:
    """Four cells of a tiny model, for comparison of executors."""
    return validate(
        {
            "schema": 1,
            "models": ["random-llama"],
            "formats": ["int8-head+r8", "int4-head+r8"],
            "contexts": [96, 128],
            "quality": {"protocol": {"score": 32, "windows": 2}},
            "run": {"out": str(out), **run},
        }
    )


def plain_rows(out: Path) -> dict[str, Row]:
    """Rows by key, without what tells when and where they were made."""
    rows = {row["key"]: {**row, "provenance": None} for row in read_rows(out)}
    return json.loads(json.dumps(strict_json(rows)))


@pytest.fixture(scope="module")
def local_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """On one thread, as the workers of other executors run here: sums depend on how they are split."""
    out = tmp_path_factory.mktemp("local")
    summary = run_sweep(real(out), console=Console(file=io.StringIO()))
    assert summary.counts["ok"] == 4
    return plain_rows(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "run"),
    [
        ("ray", {"executor": "ray", "ray": {"workers": 2}}),
        (
            "submitit",
            {
                "executor": "slurm",
                "slurm": {"workers": 2, "cluster": "local", "parameters": {"timeout_min": 10}},
            },
        ),
    ],
)
def test_other_executors_give_the_rows_of_the_local_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local_rows: dict[str, Row],
    package: str,
    run: dict[str, Any],
) -> None:
    pytest.importorskip(
        package, reason=f"{package} is not installed: pip install 'quantkv[{run['executor']}]'"
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    summary = run_sweep(real(tmp_path, **run), console=Console(file=io.StringIO()))
    assert summary.counts == {"ok": 4, "failed": 0, "skipped": 0} and summary.exit_code == 0
    assert len(local_rows) == 4 and plain_rows(tmp_path) == local_rows
    again = run_sweep(real(tmp_path), measure=Untouched(), console=Console(file=io.StringIO()))
    assert again.finished_before == 4


class Untouched(FakeMeasure):
    """A measure whose keys are those of the rows that are there."""

    def open(self, model: Any, sweep: Sweep) -> Any:
        from quantkv.sweep.local import LocalMeasure

        measure = LocalMeasure()
        measure.preflight(sweep)
        return measure.open(model, sweep)
