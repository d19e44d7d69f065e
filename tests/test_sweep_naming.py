"""Models of a sweep by names that tell them apart, wherever cells are listed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure, sweep
from rich.console import Console

from quantkv.commands.dry_run import grid, print_grid
from quantkv.sweep.config import validate
from quantkv.sweep.naming import ModelNames
from quantkv.sweep.run import run_sweep

TWO = [{"id": "random-llama", "dtype": "float32"}, {"id": "random-llama", "dtype": "bf16"}]
SMALL: dict[str, Any] = {"contexts": 64, "speed": None, "memory": None, "formats": "int8-head"}


def wide(file: io.StringIO) -> Console:
    return Console(file=file, width=200)


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["a", "b"], ["a", "b"]),
        ([{"id": "a", "dtype": "bf16"}], ["a"]),
        (["a", {"id": "a", "dtype": "bf16"}], ["a · float32", "a · bfloat16"]),
        (["a", {"id": "a", "attn": "sdpa"}], ["a · attn quantkv", "a · attn sdpa"]),
        ([{"id": "a", "revision": "x"}, {"id": "a", "revision": "y"}], ["a · revision x", "a · revision y"]),
        ([{"id": "a", "device_map": "auto"}, "a"], ["a · device map auto", "a"]),
    ],
)
def test_a_name_holds_what_differs_and_no_more(models: list[Any], names: list[str]) -> None:
    found = validate({"schema": 1, "models": models, "formats": "fp16", "contexts": 1, "memory": {}}).models
    assert [ModelNames(found).of(model) for model in found] == names
    assert ModelNames(found).several == (len(found) > 1)


def test_progress_names_the_model_where_there_are_several(tmp_path: Path) -> None:
    log = io.StringIO()
    run_sweep(sweep(tmp_path, models=TWO, **SMALL), measure=FakeMeasure(), console=wide(log))
    for dtype in ("float32", "bfloat16"):
        assert f"loading random-llama · {dtype}\n" in log.getvalue()
        assert f"quality  int8-head, context 64, random-llama · {dtype}  ok" in log.getvalue()
    log = io.StringIO()
    run_sweep(sweep(tmp_path / "one", **SMALL), measure=FakeMeasure(), console=wide(log))
    assert (
        "loading random-llama\n" in log.getvalue() and "quality  int8-head, context 64  ok" in log.getvalue()
    )


def test_a_dry_run_does_too_and_says_what_would_stop_the_sweep(tmp_path: Path) -> None:
    printed = io.StringIO()
    print_grid(sweep(tmp_path, models=TWO, **SMALL), wide(printed))
    assert "random-llama · float32" in printed.getvalue() and "random-llama · bfloat16" in printed.getvalue()
    assert "would stop" not in printed.getvalue()
    long = sweep(tmp_path, **SMALL | {"contexts": [64, 131072]})
    printed = io.StringIO()
    print_grid(long, wide(printed))
    words = "random-llama reads at most 131072; the largest legal context here is 130944"
    assert (
        "! the sweep would stop: contexts: 131072 and" in printed.getvalue() and words in printed.getvalue()
    )
    assert [words in line for line in grid(long)["stops"]] == [True]
    assert grid(sweep(tmp_path, **SMALL))["stops"] == []


def test_time_is_told_from_rows_of_the_same_dtype(tmp_path: Path) -> None:
    settings = sweep(tmp_path, models=TWO[:1], **SMALL)
    run_sweep(settings, measure=FakeMeasure(), console=Console(file=io.StringIO()))
    both = grid(sweep(tmp_path, models=TWO, **SMALL))
    assert both["no_estimate_for"] == ["quality"]
    assert [cell["finished"] for cell in both["cells"]] == [True, False]
