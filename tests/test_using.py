"""`use`: every generate gets a quantized cache, whatever configs say and wherever a model drops its own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runs import IMPLEMENTATIONS, token_ids
from support.architectures import tiny_model
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    LlamaConfig,
    Phi3Config,
    PhimoeConfig,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from quantkv import QuantizedCache, QuantKVError, cache_argument, use
from quantkv.models import load_model

EXACT = "exact+r8+f4+s2+k8"
SETTINGS = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
LIMIT = 64
"""Where the models below change their position embedding."""


def generated(model: Any, ids: torch.Tensor, new: int = 6, **more: Any) -> Any:
    options = SETTINGS | {"attention_mask": torch.ones_like(ids), "max_new_tokens": new} | more
    return model.generate(ids, **options)


# --- use_cache ---
def in_config(model: Any) -> None:
    model.config.use_cache = False


def in_generation_config(model: Any) -> None:
    model.generation_config.use_cache = False


@pytest.mark.parametrize("switch_off", [in_config, in_generation_config])
@pytest.mark.parametrize("family", ["llama", "opt", "falcon", "gpt_neox"])
def test_configs_that_want_no_cache_are_overruled(family: str, switch_off: Callable[[Any], None]) -> None:
    model, ids = tiny_model(family), token_ids(1, 20, 100)
    expected = generated(model, ids).sequences
    switch_off(model)
    with use(model, EXACT):
        out = generated(model, ids)
    assert torch.equal(out.sequences, expected)
    assert isinstance(out.cache, QuantizedCache) and out.cache.get_seq_length() == 25
    assert (model.config.use_cache and model.generation_config.use_cache) is not True  # as it was


def test_a_generation_config_that_wants_no_cache_is_overruled(tiny_llama: Any) -> None:
    ids, given = token_ids(1, 20), GenerationConfig(use_cache=False, max_new_tokens=6, **SETTINGS)
    expected = generated(tiny_llama, ids).sequences
    with use(tiny_llama, EXACT):
        out = tiny_llama.generate(ids, generation_config=given)
    assert torch.equal(out.sequences, expected) and out.cache.get_seq_length() == 25
    assert given.use_cache is False


def test_a_pipeline_of_a_model_without_a_cache() -> None:
    model, tokenizer = load_model("random-llama")
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = pipeline("text-generation", model=model, tokenizer=tokenizer)("one two three", **options)
    model.generation_config.use_cache = False
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    with use(model, EXACT):
        assert pipe("one two three", **options) == expected
        with pytest.raises(QuantKVError, match="use_cache=False"):
            pipe("one two three", use_cache=False, **options)


def test_a_cache_by_hand_with_use_cache_off_is_refused(tiny_llama: Any) -> None:
    ids, argument = token_ids(1, 20), cache_argument(tiny_llama)
    with pytest.raises(QuantKVError, match="use_cache=False"):
        generated(tiny_llama, ids, use_cache=False, **{argument: QuantizedCache(tiny_llama.config, EXACT)})


def test_a_forward_call_fills_the_cache_whatever_the_config_says(tiny_llama: Any) -> None:
    tiny_llama.config.use_cache = False  # what training leaves behind
    cache, ids = QuantizedCache(tiny_llama.config, EXACT), token_ids(1, 30)
    with torch.no_grad():
        parts = [tiny_llama(part, **{cache_argument(tiny_llama): cache}).logits for part in ids.split(10, 1)]
        assert (torch.cat(parts, 1) - tiny_llama(ids).logits).abs().max() < 1e-4
    assert cache.get_seq_length() == 30


# --- encoder-decoder models ---
def encoder_decoder(family: str) -> Any:
    sizes = {"vocab_size": 100, "d_model": 32, "decoder_start_token_id": 0, "eos_token_id": None}
    sizes["forced_eos_token_id"] = None
    bart = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "init_std": 0.4}  # fmt: skip
    t5 = {"d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "initializer_factor": 5.0}
    torch.manual_seed(0)
    if family == "bart":
        return BartForConditionalGeneration(BartConfig(**sizes | bart)).eval()
    return T5ForConditionalGeneration(T5Config(**sizes | t5)).eval()


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_encoder_decoder_models_get_two_caches(family: str) -> None:
    model, ids = encoder_decoder(family), token_ids(2, 20, 100)
    expected = generated(model, ids).sequences
    with use(model, "exact+r2+f1+s1+k0"):
        out = generated(model, ids)
    assert torch.equal(out.sequences, expected) and len(set(expected[0].tolist())) > 2
    caches = (out.cache.self_attention_cache, out.cache.cross_attention_cache)
    assert [type(cache) for cache in caches] == [QuantizedCache] * 2
    assert [cache.get_seq_length() for cache in caches] == [6, 20]
    with pytest.raises(QuantKVError, match="EncoderDecoderCache"):
        generated(model, ids, **{cache_argument(model): QuantizedCache(model.config, "exact")})


# --- models whose position embedding changes with the length ---
ROPES: dict[str, dict[str, Any]] = {
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0},
    "dynamic": {"factor": 2.0},
}
ROPES["phimoe"] = ROPES["longrope"] | {"rope_type": "longrope", "long_mscale": 1.2, "short_mscale": 1.0}


def switching(config_class: type, rope: str = "longrope", **more: Any) -> Any:
    """A tiny model with another position embedding beyond LIMIT tokens."""
    ends = {"original_max_position_embeddings": LIMIT}
    rotary = {"rope_type": rope, "rope_theta": 1e4, **ends, **ROPES[rope]}
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": 100, "num_key_value_heads": 2, "max_position_embeddings": LIMIT}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    torch.manual_seed(0)
    config = config_class(
        sliding_window=None, initializer_range=0.15, rope_parameters=rotary, **sizes, **tokens, **more
    )
    return AutoModelForCausalLM.from_config(config).eval()


def dropping(family: str) -> Any:
    """A model whose `generate` computes everything again from LIMIT tokens on."""
    if family == "phi3":
        return switching(Phi3Config, original_max_position_embeddings=LIMIT)
    more = {"num_local_experts": 2, "original_max_position_embeddings": LIMIT}
    return switching(PhimoeConfig, rope="phimoe", **more)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("prompt", "new"), [(50, 30), (LIMIT, 4), (LIMIT + 1, 4), (90, 4)])
def test_phi3_goes_on_in_the_quantized_cache(prompt: int, new: int, implementation: str) -> None:
    model, ids = dropping("phi3"), token_ids(1, prompt, 100)
    expected = generated(model, ids, new).sequences
    with use(model, EXACT):
        model.set_attn_implementation(implementation)
        crosses = prompt <= LIMIT
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            out = generated(model, ids, new)
    assert torch.equal(out.sequences, expected)
    assert isinstance(out.cache, QuantizedCache) and out.cache.get_seq_length() == prompt + new - 1
    about = [str(w.message) for w in said if "packed anew" in str(w.message)]
    assert len(about) == crosses and all(
        f"phi3 dropped its cache of {LIMIT} tokens" in text for text in about
    )
    assert "prepare_inputs_for_generation" not in vars(model)


@pytest.mark.parametrize("family", ["phi3", "phimoe"])
@pytest.mark.parametrize("more", [{"num_beams": 2}, {"prompt_lookup_num_tokens": 3}], ids=["beams", "lookup"])
def test_other_ways_of_generating_cross_too(family: str, more: dict[str, Any]) -> None:
    model, ids = dropping(family), token_ids(1, 20, 100).repeat(1, 3)
    expected = generated(model, ids, 12, **more).sequences
    with use(model, EXACT), pytest.warns(UserWarning, match="packed anew"):
        out = generated(model, ids, 12, **more)
    assert torch.equal(out.sequences, expected)


@pytest.mark.parametrize("prompt", [50, 90])
def test_a_cache_by_hand_that_phi3_puts_aside_is_named(prompt: int) -> None:
    model, ids = dropping("phi3"), token_ids(1, prompt, 100)
    cache = QuantizedCache(model.config, EXACT)
    with pytest.warns(UserWarning, match=f"beyond {LIMIT} tokens: it leaves the quantized cache at"):
        out = generated(model, ids, 30, **{cache_argument(model): cache})
    assert out.cache is not cache and cache.get_seq_length() == (LIMIT if prompt == 50 else 0)


def test_plain_calls_beside_a_quantized_cache_are_no_event() -> None:
    model, ids = dropping("phi3"), token_ids(1, 90, 100)
    cache = QuantizedCache(model.config, EXACT)
    generated(model, ids[:, :20], 5, **{cache_argument(model): cache})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(ids[:, :60])
        model(ids)


@pytest.mark.parametrize("rope", ["longrope", "dynamic"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_model_that_keeps_its_cache_equals_dynamic_cache(rope: str, implementation: str) -> None:
    """Cached keys keep the embedding they were stored with, in both caches."""
    model, ids = switching(LlamaConfig, rope), token_ids(1, 50, 100)
    expected = generated(model, ids, 30).sequences
    with use(model, EXACT), warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_attn_implementation(implementation)
        out = generated(model, ids, 30)
    assert torch.equal(out.sequences, expected) and out.cache.get_seq_length() == 79


def test_nested_uses_undo_themselves(tiny_llama: Any) -> None:
    before = copy.copy(vars(tiny_llama))
    with use(tiny_llama, "int4-head"), use(tiny_llama, EXACT):
        assert generated(tiny_llama, token_ids(1, 9)).cache.spec.name == EXACT
    assert vars(tiny_llama).keys() == before.keys()


def test_a_copy_made_inside_runs_itself(tiny_llama: Any) -> None:
    """A copy takes the methods of `use` along; they must not go on running the original."""
    ids = token_ids(1, 40)
    with use(tiny_llama, EXACT):
        other = copy.deepcopy(tiny_llama)
        other.lm_head.weight.data.neg_()
        inside = generated(other, ids)
    plain = copy.deepcopy(tiny_llama)
    plain.lm_head.weight.data.neg_()
    assert torch.equal(inside.sequences, generated(plain, ids).sequences)
    assert not torch.equal(inside.sequences, generated(tiny_llama, ids).sequences)
