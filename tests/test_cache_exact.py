"""With the lossless codec a packed cache is a `DynamicCache`: same logits, same generated tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import IMPLEMENTATIONS, logits_in_calls, plain_cache, token_ids, with_attention

from quantkv import QuantizedCache, cache_argument
from quantkv.models import random_model

R = 8
SPEC = f"exact+r{R}+f{R}+s2+k8"
LONGEST = 3 * R + 5
MODELS = ["random-llama", "random-qwen2", "random-mistral"]
TOLERANCE = {"sdpa": 0.0, "eager": 0.0, "quantkv": 1e-4}

pytestmark = pytest.mark.usefixtures("no_gradients")


def call_sizes(length: int, chunk: int) -> list[int]:
    """Chunks of a prompt, then two decoded tokens."""
    return [chunk] * (length // chunk) + [length % chunk] * (length % chunk > 0) + [1, 1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [1, R - 1, R, R + 1, LONGEST])
def test_chunked_prefill_equals_dynamic_cache(name: str, implementation: str, chunk: int) -> None:
    model = random_model(name, hidden_size=64, intermediate_size=64, vocab_size=64)
    lengths = (
        [LONGEST] if chunk == 1 else range(1, LONGEST + 1)
    )  # one by one, every shorter length is a prefix
    for length in lengths:
        sizes, ids = call_sizes(length, chunk), token_ids(1, length + 2, 64)
        with_attention(model, "sdpa" if implementation == "quantkv" else implementation)
        expected = logits_in_calls(model, ids, plain_cache(model), sizes)
        with_attention(model, implementation)
        logits = logits_in_calls(model, ids, QuantizedCache(model.config, SPEC), sizes)
        assert (logits - expected).abs().max() <= TOLERANCE[implementation], length


@pytest.mark.parametrize("spec", ["exact", "exact+r3+f1+s0+k0", "exact+r0+f32+s5+k1"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_other_windows_equal_dynamic_cache(tiny_llama: Any, spec: str, implementation: str) -> None:
    ids, sizes = token_ids(2, 120), [50, 1, 1, 40, *[1] * 28]
    with_attention(tiny_llama, "sdpa" if implementation == "quantkv" else implementation)
    expected = logits_in_calls(tiny_llama, ids, plain_cache(tiny_llama), sizes)
    cache = QuantizedCache(tiny_llama.config, spec)
    logits = logits_in_calls(with_attention(tiny_llama, implementation), ids, cache, sizes)
    assert (logits - expected).abs().max() <= TOLERANCE[implementation]
    assert cache.layers[0].key_store.pages.used[0] > 0


HEADS = {"multi-head": 4, "grouped": 2, "multi-query": 1}


@pytest.mark.parametrize("heads", list(HEADS))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_head_layouts(heads: str, implementation: str) -> None:
    model = random_model("random-llama", num_key_value_heads=HEADS[heads])
    ids, sizes = token_ids(2, 60), [40, *[1] * 20]
    with_attention(model, "sdpa" if implementation == "quantkv" else implementation)
    expected = logits_in_calls(model, ids, plain_cache(model), sizes)
    cache = QuantizedCache(model.config, SPEC)
    logits = logits_in_calls(with_attention(model, implementation), ids, cache, sizes)
    assert (logits - expected).abs().max() <= TOLERANCE[implementation]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dtypes(dtype: torch.dtype, implementation: str) -> None:
    """The returned dtype is the model's; in half precision the fused path rounds once, at its end."""
    model = random_model("random-llama", dtype=dtype)
    ids, sizes = token_ids(1, 60), [40, *[1] * 20]
    with_attention(model, "sdpa" if implementation == "quantkv" else implementation)
    expected = logits_in_calls(model, ids, plain_cache(model), sizes)
    cache = QuantizedCache(model.config, SPEC)
    logits = logits_in_calls(with_attention(model, implementation), ids, cache, sizes)
    assert logits.dtype == cache.layers[0].keys.dtype == cache.layers[0].keys.sum().dtype == dtype
    if implementation != "quantkv":
        assert torch.equal(logits, expected)
    error = (logits.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert error <= 50 * torch.finfo(dtype).eps


# --- generate ---
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampled returns": {"do_sample": True, "num_return_sequences": 3},
    "prompt lookup": {"do_sample": False, "prompt_lookup_num_tokens": 3, "eos_token_id": 999},
}


def generated(model: Any, cache: Any, rows: int, **settings: Any) -> torch.Tensor:
    torch.manual_seed(3)
    ids = token_ids(1, 21).repeat(rows, 1)
    ids = torch.cat([ids[:, :10], ids[:, :11]], 1)  # repeats, so that prompt lookup finds candidates
    options = {cache_argument(model): cache, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, max_new_tokens=40, pad_token_id=0, **options, **settings)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("setting", list(SETTINGS))
@pytest.mark.parametrize("name", MODELS)
def test_generated_tokens_equal_dynamic_cache(name: str, setting: str, implementation: str) -> None:
    model, rows = random_model(name), 1 if setting == "prompt lookup" else 2
    with_attention(model, "sdpa" if implementation == "quantkv" else implementation)
    expected = generated(model, plain_cache(model), rows, **SETTINGS[setting])
    cache = QuantizedCache(model.config, SPEC)
    tokens = generated(with_attention(model, implementation), cache, rows, **SETTINGS[setting])
    assert torch.equal(tokens, expected)
    assert cache.layers[0].key_store.pages.used[0] >= 40


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_assisted_generation_equals_greedy(tiny_llama: Any, implementation: str) -> None:
    """The assistant proposes other tokens, so that roll-backs happen."""
    assistant = random_model("random-llama", seed=1)
    with_attention(tiny_llama, "sdpa")
    expected = generated(tiny_llama, plain_cache(tiny_llama), 1, do_sample=False)
    cache = QuantizedCache(tiny_llama.config, SPEC)
    with_attention(tiny_llama, implementation)
    tokens = generated(tiny_llama, cache, 1, do_sample=False, assistant_model=assistant)
    assert torch.equal(tokens, expected)


def test_chunked_prefill_of_generate(tiny_llama: Any) -> None:
    expected = generated(tiny_llama, plain_cache(tiny_llama), 2, do_sample=False)
    cache = QuantizedCache(tiny_llama.config, SPEC)
    assert torch.equal(generated(tiny_llama, cache, 2, do_sample=False, prefill_chunk_size=9), expected)


def test_second_turn_on_the_same_cache(tiny_llama: Any) -> None:
    """A conversation: answer, then a longer prompt that begins with what is cached."""
    argument, caches = (
        cache_argument(tiny_llama),
        [plain_cache(tiny_llama), QuantizedCache(tiny_llama.config, SPEC)],
    )
    answers = []
    for cache in caches:
        ids = token_ids(1, 20)
        for turn in range(3):
            ids = tiny_llama.generate(
                ids, **{argument: cache}, max_new_tokens=15, do_sample=False, pad_token_id=0
            )
            ids = torch.cat([ids, token_ids(1, 7, seed=turn)], 1)
        answers.append(ids)
    assert torch.equal(*answers)
