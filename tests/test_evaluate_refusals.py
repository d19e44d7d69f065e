"""Wrong arguments of the evaluation functions: one clear line, before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from quantkv import QuantKVError, cache_argument, evaluate, load_model, long_generation, retrieval, simulate
from quantkv.data import Text
from quantkv.decode_exact.simulate import protocol_calls
from quantkv.harness.requests import ContextPrefill
from quantkv.measurements.quality.protocols import make_protocol
from quantkv.measurements.speed.run import speed_block

TEXT = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
IDS = torch.randint(5, 200, (1, 140), generator=torch.Generator().manual_seed(3))


def logits(model: Any, function: Any, cache: Any = None, start: int = 0) -> torch.Tensor:
    given = {} if cache is None else {cache_argument(model): cache}
    with torch.no_grad(), simulate(model, function, prefill=100):
        return model(IDS[:, start:], **given).logits[:, 100 - start :]


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x[..., :1], r"\[1, 2, 64, 1\]"),
        (lambda x: x[:, :, :1], r"\[1, 2, 1, 32\]"),
        (lambda x: None, "NoneType"),
    ],
)
def test_a_function_that_gives_another_shape(tiny_llama: Any, function: Any, got: str) -> None:
    with pytest.raises(QuantKVError, match=rf"must give a tensor of \[1, 2, .*\], not {got}"):
        logits(tiny_llama, function)


def test_a_function_that_works_in_place_changes_no_exact_token(tiny_llama: Any) -> None:
    """Neither in the logits nor in the caller's own cache."""
    cache = DynamicCache()
    with torch.no_grad():
        tiny_llama(IDS[:, :100], **{cache_argument(tiny_llama): cache})
    keys = cache.layers[0].keys.clone()
    in_place = logits(tiny_llama, lambda x: x.mul_(0.5), cache, start=100)
    torch.testing.assert_close(in_place, logits(tiny_llama, lambda x: x * 0.5), rtol=0, atol=1e-5)
    assert torch.equal(cache.layers[0].keys[:, :, :100], keys)


@pytest.mark.parametrize("formats", [[3], [None], None, 3, lambda x: x, [], {}])
def test_formats_that_are_none(formats: Any) -> None:
    with pytest.raises(QuantKVError, match=r"no format|must be a list"):
        evaluate(*load_model("random-llama"), formats, contexts=[96], text=TEXT)


@pytest.mark.parametrize("contexts", [[], 96, "96", [96.5], ["a"], [0], [True]])
@pytest.mark.parametrize("kind", ["quality", "speed"])
def test_contexts_that_are_none(contexts: Any, kind: str) -> None:
    with pytest.raises(QuantKVError, match="contexts must be a"):
        evaluate(*load_model("random-llama"), ["fp16"], contexts=contexts, text=TEXT, kinds=[kind])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (3, "protocol 3; legal: gptq-2048, fake-quant"),
        ({"score": "3"}, "score must be a whole number of at least 1, got '3'"),
        ({"score": True}, "score must be a whole number"),
        ({"windows": 1.5}, "windows must be a whole number"),
        ({"whole": "64"}, "whole must be a whole number"),
        ({"sinks": -1}, "sinks must be a whole number of at least 0"),
        ({"recent": "a"}, "recent must be a whole number"),
        ({"scale_bf16": "no"}, "scale_bf16 must be True or False"),
    ],
)
def test_protocol_settings(settings: Any, message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        make_protocol(settings)


@pytest.mark.parametrize("prefill", ["chunk:0", "chunk:¹", "chunk:", 7, None])
def test_prefill_names(prefill: Any) -> None:
    with pytest.raises(QuantKVError, match="legal: exact, final, stream, chunk:N"):
        protocol_calls(prefill, 100)


@pytest.mark.parametrize("prefill", ["chunk:¹", "²"])
def test_prefill_names_of_lm_eval(prefill: str) -> None:
    with pytest.raises(QuantKVError, match="legal: all_but_last, exact"):
        ContextPrefill.parse(prefill)


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"rounds": 0}, {"block": 1}, {"threads": 0}, {"context": 0}], ids=str
)
def test_a_race_without_a_step(tiny_llama: Any, wrong: dict[str, int]) -> None:
    """A block drops its first step: one of 1 step times nothing."""
    with pytest.raises(QuantKVError, match=f"{next(iter(wrong))} must be a whole number of at least"):
        speed_block(tiny_llama, {"fp16": "fp16"}, ids=IDS[0], **{"context": 64} | wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kinds": []}, r"kinds must be a list, such as \['quality'\], not \[\]"),
        ({"kinds": "quality"}, "kinds must be a list"),
        ({"contexts": None}, "contexts must be a list"),
        ({"text": 5}, "no text: 5; legal: python-docs"),
        ({"batch": 0, "kinds": ["memory"]}, "batch must be a whole number of at least 1, got 0"),
        ({"batch": []}, "batch must be a whole number"),
    ],
)
def test_evaluations_of_nothing(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        evaluate(*load_model("random-llama"), ["fp16"], **{"contexts": [96], "text": TEXT} | wrong)


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ({"dynamic": "int4-head"}, "'dynamic' is the cache that others are held against"),
        ({None: "int4-head"}, "formats are called by words, not None"),
        ({"": "int4-head"}, "formats are called by words, not ''"),
    ],
)
def test_names_of_formats(formats: dict[Any, str], message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        evaluate(*load_model("random-llama"), formats, contexts=[96], text=TEXT)


def test_what_is_given_twice_is_measured_once() -> None:
    found = evaluate(
        *load_model("random-llama"), ["fp16"], contexts=[96, 64, 96], text=TEXT, score=8, windows=2
    )
    assert [row["requested"]["context"] for row in found.rows] == [96, 64]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"depths": depths} for depths in ([], 0.5, "0.5", [2], ["a"])),
        *({"samples": 0}, {"samples": 1.5}, {"tail": -5}, {"tasks": []}, {"tasks": "passkey"}),
    ],
    ids=str,
)
def test_questions_that_are_none(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"lengths": [256], "tasks": ["passkey"], "text": TEXT}
    with pytest.raises(QuantKVError, match=f"{next(iter(wrong))} must be"):
        retrieval(*load_model("random-llama"), ["fp16"], **options | wrong)


@pytest.mark.parametrize(
    "wrong", [{"prompts": 0}, {"tokens": 2.5}, {"modes": []}, {"modes": "greedy"}], ids=str
)
def test_generations_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(QuantKVError, match=f"{next(iter(wrong))} must be a"):
        long_generation(*load_model("random-llama"), ["fp16"], contexts=[96], text=TEXT, **wrong)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": [0, 1]}, r"seed must be a whole number of at least 0, got \[0, 1\]"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"threads": "2"}, "threads must be a whole number of at least 1, got '2'"),
    ],
)
def test_one_seed_and_a_number_of_threads(given: dict[str, Any], words: str) -> None:
    model, tokenizer = load_model("random-llama")
    with pytest.raises(QuantKVError, match=words):
        evaluate(model, tokenizer, ["fp16"], contexts=[64], text=TEXT, **given)
