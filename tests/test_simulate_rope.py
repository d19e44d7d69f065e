"""Models whose rotary positions change with the length of a call: one pass is decoding, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import family_model
from runs import logits_in_calls, with_attention
from torch import Tensor
from transformers import DynamicCache

from quantkv import QuantizedCache, QuantKVError, UnsupportedError, perplexity, simulate
from quantkv.decode_exact.simulate import protocol_calls

SPEC = "int4-head+r8+f4+s2+sliding"
SWITCH = 40
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": SWITCH,
    "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
}  # fmt: skip
MSCALE = LONG | {"short_mscale": 1.1, "long_mscale": 1.3}
NTK = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
BY_KIND = {"full_attention": NTK, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
DYNAMIC = {"rope_parameters": NTK, "max_position_embeddings": SWITCH}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": SWITCH}),
    "phimoe": ("phimoe", {"rope_parameters": MSCALE, "original_max_position_embeddings": SWITCH}),
    "llama-longrope": ("llama", {"rope_parameters": LONG}),
    "llama-dynamic": ("llama", DYNAMIC),
    "olmo3-dynamic": ("olmo3", DYNAMIC | {"rope_parameters": BY_KIND}),
}


def model_of(name: str) -> Any:
    family, settings = MODELS[name]
    return family_model(family, **settings)


def ids(length: int, rows: int = 1) -> Tensor:
    return torch.randint(3, 100, (rows, length), generator=torch.Generator().manual_seed(0))


def decoded(name: str, tokens: Tensor, calls: list[int]) -> Tensor:
    model = with_attention(model_of(name), "quantkv")
    calls = calls + [1] * (tokens.shape[1] - sum(calls))
    with torch.inference_mode():
        return logits_in_calls(model, tokens, QuantizedCache(model.config, SPEC), calls)


def in_one_pass(model: Any, tokens: Tensor, **arguments: Any) -> Tensor:
    with torch.inference_mode(), simulate(model, SPEC, **arguments):
        return model(tokens, use_cache=False).logits


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_that_ends_before_the_switch_is_decoding(name: str) -> None:
    tokens = ids(SWITCH)
    expected = decoded(name, tokens, [24])
    torch.testing.assert_close(in_one_pass(model_of(name), tokens, prefill=24), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("prefill", [24, SWITCH])
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_that_straddles_the_switch_is_refused(name: str, prefill: int) -> None:
    model = model_of(name)
    with pytest.raises(UnsupportedError, match=f"rotary positions change beyond {SWITCH} tokens"):
        in_one_pass(model, ids(60), prefill=prefill)
    with pytest.raises(QuantKVError, match=f"change beyond {SWITCH} tokens|model's limit of {SWITCH}"):
        perplexity(model, ids(60)[0], SPEC, context=24, score=30, windows=1)


@pytest.mark.parametrize("name", MODELS)
def test_after_a_refusal_short_passes_are_decoding_still(name: str) -> None:
    model, tokens = model_of(name), ids(SWITCH - 1)
    with pytest.raises(UnsupportedError):
        in_one_pass(model, ids(60), prefill=24)
    expected = decoded(name, tokens, [24])
    torch.testing.assert_close(in_one_pass(model, tokens, prefill=24), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama-dynamic", "olmo3-dynamic"])
def test_dynamic_frequencies_of_a_longer_call_outlive_a_call_at_the_switch(name: str) -> None:
    model = model_of(name)
    in_one_pass(model, ids(SWITCH), prefill=24)
    with torch.inference_mode():
        model(ids(60))
    with pytest.raises(UnsupportedError, match="change beyond"):
        in_one_pass(model, ids(SWITCH), prefill=24)


@pytest.mark.parametrize("name", ["phi3", "phimoe", "llama-longrope"])
def test_beyond_the_switch_longrope_is_decoding(name: str) -> None:
    """The whole prompt came beyond the switch; or up to it, and the tail is what lies beyond."""
    tokens, model = ids(70), model_of(name)
    expected = decoded(name, tokens, [50])
    torch.testing.assert_close(in_one_pass(model, tokens, prefill=50), expected, rtol=0, atol=1e-5)
    expected = decoded(name, tokens, [SWITCH])
    cache = DynamicCache()
    with torch.inference_mode():
        with_attention(model, "sdpa")(tokens[:, :SWITCH], cache=cache)
        with simulate(model, SPEC, prefill=SWITCH):
            tail = model(tokens[:, SWITCH:], cache=cache).logits
    torch.testing.assert_close(tail, expected[:, SWITCH:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("prefill", "refused"), [("chunk:45", False), ("chunk:20", True), ("stream", True)])
def test_calls_of_a_prompt_that_lie_on_both_sides_are_refused(prefill: str, refused: bool) -> None:
    arguments, tokens, model = protocol_calls(prefill, 60), ids(60), model_of("llama-longrope")
    if refused:
        with pytest.raises(UnsupportedError, match=f"{SWITCH} tokens"):
            in_one_pass(model, tokens, **arguments)
        return
    expected = decoded("llama-longrope", tokens, [45, 15])
    torch.testing.assert_close(in_one_pass(model, tokens, **arguments), expected, rtol=0, atol=1e-5)


def test_a_short_row_beside_a_long_one_is_refused() -> None:
    """Alone, the row of 30 tokens would be decoded before the switch; in the pass it is turned as beyond."""
    with pytest.raises(UnsupportedError, match=f"{SWITCH} tokens"):
        in_one_pass(model_of("llama-longrope"), ids(60, rows=2), prefill=[50, 20], lengths=[60, 30])
    in_one_pass(model_of("llama-longrope"), ids(60, rows=2), prefill=[50, 45], lengths=[60, 55])
