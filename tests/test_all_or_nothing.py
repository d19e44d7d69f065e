"""A refused call leaves every layer as it was, whichever layer refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import WINDOW, Pair, agree, observed

from quantkv import QuantizedCache, QuantKVError
from quantkv.models import random_model

EXACT, PACKED = "int4-head+r8+f4+k8", "int4-head+r8+f4+k8+sliding"
TOO_LATE = ["record", 9]
"""Calls of so many tokens; `record` asks for the past to be kept, here when most of it has gone."""


def wide(cache: Any) -> None:
    layer = next(i for i, layer in enumerate(cache.layers) if layer.is_sliding)
    shape = (2, 2, 3, 8)
    cache.update(torch.ones(shape), torch.ones(*shape[:3], 7), layer)


REFUSED: dict[str, tuple[str, str, list[Any], Callable[[Any], Any], type[Exception], str]] = {
    "packed windows, truncate": (
        "gemma3_text", PACKED, [80], lambda c: c.truncate(40), QuantKVError, "can take back 8 tokens, not 40",
    ),
    "packed windows, crop": (
        "gemma3_text", PACKED, [80], lambda c: c.crop(-9), QuantKVError, "can take back 8 tokens, not 9",
    ),
    "packed windows, crop to a length": (
        "gemma3_text", PACKED, [80], lambda c: c.crop(40), QuantKVError, "can take back 8 tokens, not 40",
    ),
    "exact windows, truncate": (
        "gemma3_text", EXACT, [80], lambda c: c.truncate(79), QuantKVError, "cannot take back 1 tokens",
    ),
    "exact windows, crop": (
        "gemma3_text", EXACT, [80], lambda c: c.crop(-1), RuntimeError, "does not track past states",
    ),
    "exact windows, recorded too late": (
        "gemma3_text", EXACT, [80, *TOO_LATE], lambda c: c.truncate(75), QuantKVError, "cannot go back to 75",
    ),
    "packed windows, recorded too late": (
        "gemma3_text", PACKED, [2100, *TOO_LATE], lambda c: c.crop(-60), QuantKVError,
        "before token 2048 are gone",
    ),
    "running states": (
        "qwen3_next", EXACT, ["record", 40], lambda c: c.crop(-1), QuantKVError, "layer 0, .* running state",
    ),
    "convolutions, recorded too late": (
        "lfm2_moe", EXACT, [40, *TOO_LATE], lambda c: c.truncate(38), QuantKVError, "cannot go back to 38",
    ),
    "rows that are not there": (
        "gemma3_text", EXACT, [80], lambda c: c.batch_select_indices(torch.tensor([0, 2])), IndexError, "",
    ),
    "a negative beam": (
        "gemma3_text", PACKED, [80], lambda c: c.reorder_cache(torch.tensor([0, -1])), IndexError, "",
    ),
    "no row at all": (
        "gemma3_text", PACKED, [80], lambda c: c.batch_repeat_interleave(0), QuantKVError, "one row or more",
    ),
    "running states, select": (
        "qwen3_next", EXACT, [40], lambda c: c.batch_select_indices(torch.tensor([0])), AttributeError, "",
    ),
    "values of another width, packed": (
        "gemma3_text", PACKED, [80], wide, QuantKVError, "the cache holds .*8, torch.float32",
    ),
    "values of another width, exact": ("gemma3_text", EXACT, [80], wide, RuntimeError, "match"),
}  # fmt: skip
"""Family, format, calls before, the call, its error and what that says."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_changes_nothing(name: str) -> None:
    family, spec, before, call, error, says = REFUSED[name]
    pair = Pair(family, spec, rows=2, dtype=torch.float32)
    cache = pair.plain = pair.packed  # the same one twice: only this one is asked
    for step in before:
        cache.activate_past_recording() if step == "record" else fill(pair, step)
    held, table = observed(cache), cache.describe()
    with pytest.raises(error, match=says or None):
        call(cache)
    agree(held, observed(cache), "changed")
    told = [column for column in table if column != "materialized"]
    assert cache.describe()[told].equals(table[told])


def fill(pair: Pair, tokens: int) -> None:
    for layer in range(len(pair.packed)):
        if layer in pair.attending:
            pair.packed.update(*pair.tensors(layer, tokens), layer)
        elif layer in pair.running:
            pair.packed.update_conv_state(torch.randn(2, 6, tokens), layer, conv_kernel_size=4)
            if pair.family != "lfm2_moe":
                pair.packed.update_recurrent_state(torch.randn(2, 2, 3, 3), layer)


def test_a_refused_first_call_builds_nothing() -> None:
    cache = QuantizedCache(random_model("random-llama").config, "int4-head")
    x = torch.randn(2, 2, 9, 32)
    for bad in ((x[0], x[0]), (x, x[:, :, :8]), (x, x[:1])):
        with pytest.raises(QuantKVError, match="keys and values are"):
            cache.update(*bad, 0)
        assert not cache.layers[0].is_initialized and cache.nbytes == 0


def test_other_dtypes_are_refused_by_name() -> None:
    """They would be rounded to the dtype of the first call without a word."""
    cache = QuantizedCache(random_model("random-llama").config, "int4-head")
    x = torch.randn(1, 2, 9, 32)
    cache.update(x.half(), x.half(), 0)
    with pytest.raises(QuantKVError, match=r"torch.float16.*this call brings.*torch.float32"):
        cache.update(x, x, 0)


@pytest.mark.parametrize("window", [0, 5])
def test_to_truncate_by_nothing_is_nothing(window: int) -> None:
    pair = Pair("gemma3_text", EXACT, rows=2, dtype=torch.float32)
    pair.plain = pair.packed
    fill(pair, WINDOW + window)
    held = observed(pair.packed)
    pair.packed.truncate(WINDOW + window)
    agree(held, observed(pair.packed), "changed")


def test_describe_names_the_layer_whose_keys_are_read() -> None:
    table = Pair("gemma4_text", PACKED, rows=1, dtype=torch.float32).packed.describe()
    assert table["why"].tolist()[2:] == [f"reads the keys and values of layer {i}" for i in (0, 1)]
    assert table["quantized"].tolist() == [True, True, False, False]
