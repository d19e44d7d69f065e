"""`quantkv results`: what is listed, what is found wrong, and what goes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from quantkv.commands.cli import app
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row, write_row
from quantkv.rows.kinds import CODEC_VERSION, versions
from quantkv.rows.methods import methods_in
from quantkv.sweep.config import validate
from quantkv.sweep.grid import expand
from quantkv.version import METHODS

FACTS = {"fingerprint": "f", "codecs": CODEC_VERSION}


def cells() -> list[Cell]:
    raw = {"schema": 1, "models": ["m"], "formats": ["int8-head", "int4-head"], "contexts": [64, 128]}
    return expand(validate(raw | {"quality": {}, "memory": {}}))


def row_of(cell: Cell, **changes: Any) -> Row:
    keyed = cell.keyed(FACTS)
    made = {"metrics": versions(), "codecs": CODEC_VERSION, "keyed": keyed, "started": "2026-01-01"}
    row = {"schema": 1, "kind": cell.kind, "key": cell.key(FACTS), "status": "ok", "reason": None}
    row |= {"requested": cell.requested(), cell.kind: {"tokens_scored": 3}, "provenance": made}
    return row | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten whole rows, of which one failed."""
    for cell in cells():
        tokens = {"kl": np.zeros(3)} if cell.kind == "quality" else None
        failed = {"status": "failed", "reason": "broke", "memory": None}
        last = (cell.kind, cell.label, cell.context) == ("memory", "int4-head", 128)
        write_row(row_of(cell, **(failed if last else {})), tmp_path, tokens=tokens)
    return tmp_path


def results(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["results", *map(str, arguments)], env={"COLUMNS": "200"})


def listed(*arguments: str | Path) -> list[tuple[str, str, int]]:
    rows = json.loads(results(*arguments, "--json").stdout)
    return sorted((row["kind"], row["requested"]["format"], row["requested"]["context"]) for row in rows)


def test_checkpoints_of_one_name_are_said(tmp_path: Path) -> None:
    cell = cells()[0]
    for number, weights in enumerate(("a" * 64, "b" * 64)):
        assert "checkpoints" not in results(tmp_path).output
        made = {"fingerprint": weights}
        write_row(row_of(cell, key=str(number) * 64, provenance=made), tmp_path)
    words = f"m (float32): rows of 2 checkpoints of this name, with fingerprints {'a' * 12}, {'b' * 12}"
    assert words in results(tmp_path).output


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ([], 10),
        (["--kind", "memory"], 6),
        (["--kind", "memory", "--kind", "quality"], 10),
        (["--format", "int4-head"], 4),
        (["--context", "64", "--kind", "memory"], 3),
        (["--status", "failed"], 1),
        (["--status", "skipped"], 0),
        (["--model", "m"], 10),
        (["--model", "other"], 0),
    ],
)
def test_filters(folder: Path, filters: list[str], count: int) -> None:
    assert len(listed(folder, *filters)) == count
    assert f"{count} rows" in results(folder, *filters).output


def test_the_list_shows_why_a_cell_failed(folder: Path) -> None:
    output = results(folder, "--status", "failed").output
    assert "broke" in output and "int4-head" in output and "1 rows, 1 failed" in output


def test_a_whole_folder_verifies(folder: Path) -> None:
    result = results(folder, "--verify")
    assert (result.exit_code, result.output) == (0, "every file is as a sweep writes it\n")


def spoil(folder: Path, pattern: str, **changes: Any) -> Path:
    path = next(folder.glob(pattern))
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def the_problem(folder: Path) -> str:
    result = results(folder, "--verify")
    assert result.exit_code == 3
    (line,) = result.output.splitlines()
    return line


def test_each_thing_that_can_be_wrong_is_found(folder: Path) -> None:
    path = next(folder.glob("quality-int8-head-c64-*.json"))
    text = path.read_text()
    path.write_text(text[:90])
    lines = results(folder, "--verify").output.splitlines()
    assert lines[0].startswith(f"{path.name}: no whole result file")
    assert lines[1] == f"{path.with_suffix('.npz').name}: arrays without a row" and len(lines) == 2
    path.write_text(text.replace('"tokens_scored": 3', '"tokens_scored": NaN'))
    assert "it holds NaN" in results(folder, "--verify").output
    path.write_text(text)
    path.with_suffix(".npz").rename(folder / "aside")
    assert the_problem(folder) == f"{path.name}: {path.with_suffix('.npz').name} is missing"
    np.savez(path.with_suffix(".npz"), kl=np.zeros(2))
    assert the_problem(folder).endswith("holds [2] values, 3 tokens were scored")
    whole = io.BytesIO()
    np.savez(whole, kl=np.zeros(3))
    for damaged in (b"PK", whole.getvalue()[:40], whole.getvalue()[:-9]):
        path.with_suffix(".npz").write_bytes(damaged)
        assert "cannot be read" in the_problem(folder)


def test_a_key_that_does_not_belong_is_found(folder: Path) -> None:
    row = json.loads(next(folder.glob("memory-int8-head-c64-*.json")).read_text())
    row["provenance"]["keyed"][3]["codecs"] = CODEC_VERSION + 1
    spoil(folder, "memory-int8-head-c64-*.json", provenance=row["provenance"])
    assert the_problem(folder).endswith("its key is not the hash of what it was made from")


def test_a_row_that_was_relabelled_is_found(folder: Path) -> None:
    path = next(folder.glob("memory-int8-head-c64-*.json"))
    asked = json.loads(path.read_text())["requested"]
    spoil(folder, path.name, requested=asked | {"spec": "int4-head"})
    assert the_problem(folder) == f"{path.name}: what was asked is not what its key was made from"


def test_numbers_of_a_failed_cell_are_found(folder: Path) -> None:
    path = spoil(folder, "memory-int8-head-c64-*.json", status="failed", reason="broke")
    assert the_problem(folder) == f"{path.name}: numbers of a cell that failed"


def test_pruning_says_what_it_would_delete_and_deletes_only_when_told(folder: Path) -> None:
    old = {"metrics": versions() | {"quality": versions()["quality"] - 1}}
    metric = spoil(folder, "quality-int8-head-c64-*.json", provenance=old)
    codec = spoil(folder, "memory-int8-head-c64-*.json", provenance={"codecs": CODEC_VERSION - 1})
    other = spoil(folder, "memory-int8-head-c128-*.json", provenance={"source": "external"})
    later = {"metrics": versions() | {"memory": versions()["memory"] + 1}}
    newer = spoil(folder, "memory-int4-head-c64-*.json", provenance=later)
    before = sorted(folder.iterdir())
    told = results(folder, "--prune")
    assert told.exit_code == 0 and sorted(folder.iterdir()) == before
    assert told.output.splitlines() == [
        f"{codec.name}: codec version {CODEC_VERSION - 1}, now {CODEC_VERSION}",
        f"{metric.name}: metric version {versions()['quality'] - 1}, now {versions()['quality']}",
        "2 rows of older versions; --yes deletes them",
    ]
    assert "2 rows of older versions deleted" in results(folder, "--prune", "--yes").output
    gone = {codec, metric, metric.with_suffix(".npz")}
    assert set(before) - set(folder.iterdir()) == gone and other.exists() and newer.exists()
    assert results(folder, "--prune").output == "0 rows of older versions\n"


@pytest.mark.parametrize(
    ("spec", "methods"),
    [
        ("int4-head", {"int4"}),
        ("k8v4@ctr.had.w64+r16", {"int8", "int4", "ctr", "had"}),
        ("k.int2-channel@g32.near.had+r0+f128+v.fp8-e4m3+s0", {"int2", "had", "fp8-e4m3"}),
        (
            "int4-head+l0-1.fp16+l-1.k.int8-token@g32.smooth+l-1.v.fp8-e5m2-head",
            {"int4", "fp16", "int8", "smooth", "fp8-e5m2"},
        ),
        ("int4-g32+p.window", {"int4"}),
        ("dynamic", set()),
        ("mine-head@mine", set()),
    ],
)
def test_the_methods_of_a_row_are_read_without_loading_any(spec: str, methods: set[str]) -> None:
    assert methods_in(spec) == methods


def test_a_format_whose_rule_changed_is_told_and_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "int4", 2)
    told = results(folder, "--prune").output.splitlines()
    assert len(told) == 5 and all(
        "int4-head" in line and "int4 version 1, now 2" in line for line in told[:4]
    )
    assert results(folder, "--verify").exit_code == 0
    row = json.loads(next(folder.glob("memory-int4-head-c64-*.json")).read_text())
    row["provenance"]["keyed"][3]["methods"] = {"int4": 2}
    spoil(folder, "memory-int4-head-c64-*.json", provenance=row["provenance"])
    assert len(results(folder, "--prune").output.splitlines()) == 4
    monkeypatch.setitem(METHODS, "int4", 1)  # a row of a later version is not ours to prune
    assert results(folder, "--prune").output == "0 rows of older versions\n"


def test_results_are_listed_without_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom quantkv.commands.cli import app\n"
        f"try:\n  app(['results', {str(folder)!r}, '--prune'])\n"
        "finally:\n  assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pruning_keeps_to_the_filters(folder: Path) -> None:
    for pattern in ("memory-int8-head-c64-*.json", "memory-int4-head-c64-*.json"):
        spoil(folder, pattern, provenance={"codecs": CODEC_VERSION - 1})
    results(folder, "--prune", "--yes", "--format", "int8-head")
    assert not list(folder.glob("memory-int8-head-c64-*")) and list(folder.glob("memory-int4-head-c64-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "qualty"], "--kind: 'qualty' is not one of quality, "),
        (["--status", "good"], "--status: 'good' is not one of ok, failed, skipped"),
        (["--yes"], "--yes has no effect without --prune"),
        (["--prune", "--verify"], "give --prune or --verify, not both"),
        (["--verify", "--kind", "memory"], "--verify checks every file of the folder: --kind has no effect"),
    ],
)
def test_wrong_options_are_one_line(folder: Path, arguments: list[str], message: str) -> None:
    result = results(folder, *arguments)
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1


def test_no_folder_is_one_line(tmp_path: Path) -> None:
    result = results(tmp_path / "none")
    assert result.exit_code == 2 and "there is no such folder" in result.stderr
