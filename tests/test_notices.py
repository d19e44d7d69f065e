"""Events that change numbers are said once per cache, and stand in `describe()`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkv import QuantizedCache, load_model
from quantkv.engines import native


@cache
def config() -> Any:
    return load_model("random-llama")[0].config


def empty(spec: str) -> QuantizedCache:
    return QuantizedCache(config(), spec)


def append(cache: QuantizedCache, tokens: int) -> None:
    for layer in range(2):
        cache.update(torch.randn(2, 2, tokens, 32), torch.randn(2, 2, tokens, 32), layer)


def said(event: str, act: Callable[[], Any]) -> int:
    """How often a word is said on the terminal."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return sum(event in str(warning.message) for warning in found)


def go_back(cache: QuantizedCache, *steps: int) -> None:
    for step in steps:
        cache.crop(-step)


# --- roll-backs beyond the reserve of 32 tokens ---
@pytest.mark.parametrize("spec", ["int4-head", "kivi-2", "int8-channel+l0.exact", "fp16+f8"])
@pytest.mark.parametrize("how", ["crop", "truncate"])
def test_a_deep_roll_back_is_said_once(spec: str, how: str) -> None:
    cache = empty(spec)
    append(cache, 300)
    assert said("deep_rollbacks", lambda: go_back(cache, 3)) == 0
    back = {"crop": lambda: go_back(cache, 100), "truncate": lambda: cache.truncate(197)}
    assert said("deep_rollbacks", back[how]) == 1
    assert cache.describe()["deep_rollbacks"].max() > 0
    assert said("deep_rollbacks", lambda: go_back(cache, 60)) == 0
    assert said("deep_rollbacks", lambda: go_back(cache.fork(), 40)) == 0
    assert said("deep_rollbacks", lambda: go_back(copy.deepcopy(cache), 40)) == 0


def test_a_lossless_format_counts_and_says_nothing() -> None:
    cache = empty("exact+f8")
    append(cache, 301)
    assert said("deep_rollbacks", lambda: go_back(cache, 100)) == 0
    assert cache.describe()["deep_rollbacks"].tolist() == [2, 2]


def test_a_longer_reserve_makes_a_roll_back_shallow() -> None:
    cache = empty("int4-head+k256")
    append(cache, 300)
    assert said("deep_rollbacks", lambda: go_back(cache, 100)) == 0


# --- exact history that is packed after all ---
@pytest.mark.parametrize("calls", [(60, *[1] * 60), (60, 60), (120,)])
def test_packing_after_q_is_said_once_and_its_length_told(calls: tuple[int, ...]) -> None:
    cache, lengths = empty("int4-head+q100"), []
    assert said("packed_at", lambda: append(cache, calls[0])) == (calls[0] > 100)
    assert cache.describe()["packed_at"].isna().all() == (calls[0] <= 100)

    def go_on() -> None:
        for call in calls[1:]:
            append(cache, call)
            lengths.append(cache.get_seq_length())

    assert said("packed_at", go_on) == (len(calls) > 1)
    first = next((n for n in lengths if n > 100), 120)
    assert cache.describe()["packed_at"].tolist() == [first, first]
    assert said("packed_at", lambda: append(cache.fork(), 50)) == 0


def test_a_file_keeps_what_happened(tmp_path: Path) -> None:
    cache = empty("int4-head+q100")
    with warnings.catch_warnings(action="ignore"):
        for layer in range(2):
            cache.update(torch.randn(2, 2, 150, 32), torch.full((2, 2, 150, 32), -1e5), layer)
    cache.save(tmp_path / "cache")
    loaded = QuantizedCache.load(tmp_path / "cache", config())
    events = ["saturated", "packed_at"]
    assert loaded.describe()[events].equals(cache.describe()[events])
    assert (loaded.describe()["saturated"] > 0).all()


def test_nothing_is_said_of_formats_that_always_pack() -> None:
    cache = empty("int4-head")
    assert said("packed_at", lambda: append(cache, 300)) == 0
    assert cache.describe()["packed_at"].isna().all()


# --- the engine of each layer ---
def test_describe_names_the_engine_of_each_layer() -> None:
    cache = empty("int4-head+l1.int4-head@near")
    cache.update(torch.randn(1, 2, 99, 32), torch.randn(1, 2, 99, 32), 0)
    cache.update(torch.randn(1, 2, 99, 32).double(), torch.randn(1, 2, 99, 32).double(), 1)
    own = "reference" if native.isa() is None else f"native-{native.isa()}"
    assert cache.describe()["engine"].tolist() == [own, "reference"]  # no kernels for float64
    assert cache.engine == "reference"


def test_describe_names_transformers_for_layers_it_keeps() -> None:
    cache = QuantizedCache(load_model("random-gemma3")[0].config, "int4-head")
    table = cache.describe()
    assert set(table["engine"][~table["quantized"]]) == {"transformers"}
    assert "transformers" not in set(table["engine"][table["quantized"]])
