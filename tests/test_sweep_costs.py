"""What a sweep will take: bytes of its cells, what cannot fit, and times that earlier rows tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quantkv.planner.sizes
from quantkv.commands.cli import app
from quantkv.planner.sizes import Memory
from quantkv.rows.cell import Cell
from quantkv.rows.kinds import CODEC_VERSION, versions
from quantkv.sweep.config import Sweep, validate
from quantkv.sweep.costs import Past, cell_costs
from quantkv.sweep.grid import expand

TOKEN = 2 * 2 * 2 * 32 * 4
"""Bytes of one exact token of random-llama: two layers, keys and values, two heads of 32 in float32."""


def sweep(out: Path, **settings: Any) -> Sweep:
    base: dict[str, Any] = {"schema": 1, "models": ["random-llama"], "formats": ["int4-head"], "memory": {}}
    return validate(base | {"contexts": [512], "run": {"out": str(out)}} | settings)


def finished(cell: Cell, seconds: float, **changes: Any) -> dict[str, Any]:
    """The row of a cell, whose key was made of facts that only a loaded model tells."""
    facts = {"fingerprint": "of the model", "codecs": CODEC_VERSION}
    row = {"schema": 1, "kind": cell.kind, "key": cell.key(facts), "status": "ok", cell.kind: {}}
    row |= {"requested": cell.requested(), "protocol": {**cell.protocol, "threads": 64, "text_sha256": "0"}}
    return row | {"provenance": {"seconds": seconds, "keyed": cell.keyed(facts)}} | changes


def write(folder: Path, *rows: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    for index, row in enumerate(rows):
        (folder / f"row-{index}.json").write_text(json.dumps(row))


def test_bytes_by_hand(tmp_path: Path) -> None:
    """int4-head at 512 tokens: 4 sinks, 64 recent, 32 flush, 32 reserve; 416 packed tokens take a page of 256
    twice, each 20 bytes per token and head: 16 of codes, 4 of scale and zero."""
    cells = expand(sweep(tmp_path, batch_sizes=[1, 3]))
    costs = {(cell.label, cell.batch): cost.cache for cell, cost in zip(cells, cell_costs(cells))}
    packed = 2 * 2 * 2 * (32 * 4 * (4 + 64 + 32 + 32) + 2 * 256 * 20)
    for rows in (1, 3):
        assert costs["dynamic", rows] == rows * 512 * TOKEN and costs["int4-head", rows] == rows * packed


def test_arms_of_a_speed_block_must_fit_together(tmp_path: Path) -> None:
    cells = expand(sweep(tmp_path, memory=None, speed={}))
    plain, packed = cell_costs(cells)
    assert plain.cache and packed.cache and plain.weights
    both = plain.weights + plain.cache + packed.cache
    assert plain.fits(both) and packed.fits(both) and not plain.fits(both - 1) and not packed.fits(both - 1)
    alone = cell_costs(expand(sweep(tmp_path)))[0]
    assert alone.fits(plain.weights + plain.cache) and not alone.fits(plain.weights + plain.cache - 1)


def test_what_cannot_be_planned_is_said_not_guessed(tmp_path: Path) -> None:
    cells = expand(
        sweep(tmp_path, formats=["int4-g32"], models=["random-llama:head_dim=40", "no/such-model"])
    )
    costs = cell_costs(cells)
    assert [cost.cache is None for cost in costs] == [False, True, True, True]
    assert "int4-g32" in costs[1].why and "no configuration" in costs[2].why
    assert costs[2].fits(0)


def test_times_come_from_rows_of_the_same_model_and_kind(tmp_path: Path) -> None:
    settings = sweep(tmp_path / "r", contexts=[512, 1024], speed={})
    cells = expand(settings)
    by = {(cell.kind, cell.context, cell.label): cell for cell in cells}
    done = by["memory", 512, "int4-head"]
    foreign = done.requested() | {"model": "random-qwen2"}
    write(tmp_path / "r", finished(done, 10.0), finished(done, 900.0, requested=foreign, key="other"))
    past = Past(settings)
    assert [cell for cell in cells if past.has(cell)] == [done]
    seconds, unknown = past.seconds(cell for cell in cells if cell.context == 512)
    assert (seconds, unknown) == (20.0, {"speed": 2})
    assert past.seconds([by["speed", 512, "dynamic"]]) == (0.0, {"speed": 1})


@pytest.mark.parametrize(
    "change",
    [{"status": "failed"}, {"requested": {"model": "random-llama", "context": 512}}, {"key": "0" * 64}],
)
def test_rows_of_other_questions_finish_no_cell(tmp_path: Path, change: dict[str, Any]) -> None:
    settings = sweep(tmp_path / "r")
    cells = expand(settings)
    write(tmp_path / "r", finished(cells[0], 1.0, **change))
    assert not any(Past(settings).has(cell) for cell in cells)


def quality_sweep(out: Path, protocol: dict[str, Any], **settings: Any) -> Sweep:
    quality = {"protocol": protocol} | settings.pop("quality", {})
    return sweep(out, memory=None, quality=quality, **settings)


def test_settings_count_as_they_were_asked_for_not_as_they_turned_out(tmp_path: Path) -> None:
    """A tokenizer without a BOS, and a text of 7 whole windows: the row says none and 7."""
    whole = {"whole": 64, "prefill": "stream"}
    asked = quality_sweep(tmp_path / "r", whole, contexts=[64])
    (cell,) = expand(asked)
    row = finished(cell, 1.0)
    row["protocol"] |= {"bos": "none", "windows": 7}
    write(tmp_path / "r", row)
    assert Past(asked).has(cell)
    for changed in ({"windows": 7}, {"bos": "none"}):
        (other,) = expand(quality_sweep(tmp_path / "r", whole | changed, contexts=[64]))
        assert not Past(asked).has(other), changed


def test_a_seed_counts_where_it_picks(tmp_path: Path) -> None:
    first, second = (quality_sweep(tmp_path / "r", {}, seeds=[seed], speed={}) for seed in (0, 1))
    write(tmp_path / "r", *(finished(cell, 1.0) for cell in expand(first)))
    assert [cell.kind for cell in expand(second) if Past(second).has(cell)] == ["speed", "speed"]


@pytest.mark.parametrize(
    "made, other",
    [
        ({"quality": {}}, {"quality": {"text": "another.txt"}}),
        ({"speed": {"threads": 64}}, {"speed": {"threads": 1}}),
    ],
)
def test_another_text_or_number_of_threads_is_another_question(
    tmp_path: Path, made: dict[str, Any], other: dict[str, Any]
) -> None:
    before, after = (sweep(tmp_path / "r", memory=None, **settings) for settings in (made, other))
    write(tmp_path / "r", *(finished(cell, 1.0) for cell in expand(before)))
    assert all(Past(before).has(cell) for cell in expand(before))
    assert not any(Past(after).has(cell) for cell in expand(after))


def test_rows_of_older_metrics_are_to_be_measured_again(tmp_path: Path) -> None:
    settings = sweep(tmp_path / "r")
    cells = expand(settings)
    row = finished(cells[0], 1.0)
    row["provenance"]["metrics"] = {"memory": versions()["memory"] - 1}
    write(tmp_path / "r", row)
    assert not Past(settings).has(cells[0])


def test_a_dry_run_says_what_does_not_fit_and_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantkv.planner.sizes, "free_memory", lambda: Memory(1_900_000, "a thimble"))
    settings = sweep(tmp_path / "r", contexts=[512])
    write(tmp_path / "r", finished(expand(settings)[1], 180.0))
    file = tmp_path / "sweep.yaml"
    file.write_text("schema: 1\nmodels: [random-llama]\nformats: [int4-head]\ncontexts: [512]\nmemory: {}\n")
    arguments = ["sweep", str(file), "--out", str(tmp_path / "r"), "--dry-run"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    assert "dynamic 524 KB !, int4-head 217 KB" in result.output
    assert "free now: 0.001900 GB" in result.output and "a thimble" in result.output
    assert "! 1 cells of random-llama cannot fit" in result.output
    assert "1 of them have a row there already" in result.output
    assert "time: about 3 min, going by earlier rows" in result.output
    assert len(list((tmp_path / "r").iterdir())) == 1
