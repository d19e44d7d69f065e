"""What cannot be served is refused with one clear message, before anything has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import logits_in_calls, token_ids, with_attention

from quantkv import QuantizedCache, QuantKVError, parse_spec
from quantkv.models import load_model, random_model
from quantkv.sweep.reading import parse_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int4-head+r99999999999999999999", "at most 2147483647"),
        ("fp16@g4", "fp16 does not"),
        ("int4-head+s1+s2", "says s twice"),
        ("int4-head+sliding+sliding", "says sliding twice"),
        ("int4-head+l5-2.fp16", "ends before it begins; legal: 2-5"),
        ("int4-head+what", "sliding p"),
    ],
)
def test_strings(text: str, message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        parse_spec(text)


@pytest.mark.parametrize("where", ["9", "2-7", "-3"])
def test_an_override_without_a_layer(tiny_llama: Any, where: str) -> None:
    with pytest.raises(QuantKVError, match=f"l{where} names no layer of this model; legal layers: 0 to 1"):
        QuantizedCache(tiny_llama.config, f"int4-head+l{where}.fp16")


@pytest.mark.parametrize("options", ["head_dim=33", "num_hidden_layers=x", "hidden_size=-3"])
def test_impossible_model_options(options: str) -> None:
    with pytest.raises(QuantKVError, match="random-llama"):
        load_model(f"random-llama:{options}")


def test_an_alias_that_contains_itself() -> None:
    with pytest.raises(QuantKVError, match="x: nested too deeply, as by an alias that contains itself"):
        parse_yaml("a: &a [*a]", where="x")


def test_a_call_with_another_number_of_rows(tiny_llama: Any) -> None:
    model, cache = with_attention(tiny_llama, "quantkv"), QuantizedCache(tiny_llama.config, "int4-head")
    with torch.no_grad():
        logits_in_calls(model, token_ids(2, 20), cache, [20])
        with pytest.raises(QuantKVError, match="the cache holds 2 rows, this call brings 3"):
            logits_in_calls(model, token_ids(3, 1), cache, [1])


def test_a_file_that_cannot_be_written(tiny_llama: Any, tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match="cannot write a cache to"):
        QuantizedCache(tiny_llama.config, "int4-head").save(tmp_path / "missing" / "c")


def test_truncate_changes_nothing_where_a_layer_refuses() -> None:
    model = with_attention(random_model("random-gemma3"), "quantkv")
    cache = QuantizedCache(model.config, "int4-head")
    with torch.no_grad():
        logits_in_calls(model, token_ids(1, 120), cache, [100, *[1] * 20])
    with pytest.raises(QuantKVError, match="cannot take back 10 tokens"):
        cache.truncate(110)
    assert {layer.get_seq_length() for layer in cache.layers} == {120}


def test_exact_layers_are_predicted_as_they_are_held() -> None:
    model = with_attention(random_model("random-gemma3"), "quantkv")
    cache = QuantizedCache(model.config, "int4-head")
    with torch.no_grad():
        for size in (150, 1, 5, 1):
            logits_in_calls(model, token_ids(2, size), cache, [size])
            assert cache.nbytes == cache.predicted_nbytes()
