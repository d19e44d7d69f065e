"""Everything `generate` can do gives the same tokens with the lossless codec as with a `DynamicCache`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from runs import left_padded, plain_cache, token_ids, with_attention
from torch import Tensor

from quantkv import QuantizedCache, cache_argument
from quantkv.models import random_model

SPEC = "exact+r8+f8+s2+k8+sliding"
PROMPT, NEW = 45, 30


def settings(**more: Any) -> dict[str, Any]:
    return {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **more}


def generate(model: Any, cache: Any, ids: Tensor | None = None, **more: Any) -> Tensor:
    ids = token_ids(2, PROMPT) if ids is None else ids
    return model.generate(ids, **{cache_argument(model): cache}, **settings(**more))


def sampled(model: Any, cache: Any) -> Tensor:
    torch.manual_seed(3)
    return generate(model, cache, do_sample=True, num_return_sequences=2, temperature=0.8)


def beams(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, num_beams=3, num_return_sequences=2)


def sampled_beams(model: Any, cache: Any) -> Tensor:
    torch.manual_seed(5)
    return generate(model, cache, num_beams=3, do_sample=True)


def padded(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, attention_mask=left_padded([0, 13], PROMPT))


def padded_beams(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, attention_mask=left_padded([7, 0], PROMPT), num_beams=2)


def chunked(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, prefill_chunk_size=7)


def prompt_lookup(model: Any, cache: Any) -> Tensor:
    ids = token_ids(1, 15).repeat(1, 3)
    return generate(model, cache, ids, prompt_lookup_num_tokens=4)


def assisted(model: Any, cache: Any) -> Tensor:
    assistant = random_model("random-llama", num_hidden_layers=1)
    return generate(model, cache, token_ids(1, PROMPT), assistant_model=assistant)


def chat(model: Any, cache: Any) -> Tensor:
    """Three turns on one cache: each continues what the last one left."""
    ids = token_ids(1, 20)
    for turn in range(3):
        ids = torch.cat([generate(model, cache, ids, max_new_tokens=12), token_ids(1, 9, seed=turn)], 1)
    return ids


def reset(model: Any, cache: Any) -> Tensor:
    generate(model, cache, token_ids(1, 60, seed=9))
    cache.reset()
    return generate(model, cache)


def copied(model: Any, cache: Any) -> Tensor:
    first = generate(model, cache, token_ids(1, PROMPT), max_new_tokens=12)
    return generate(model, copy.deepcopy(cache), torch.cat([first, token_ids(1, 3)], 1))


MODES = {
    "greedy": generate, "sampled": sampled, "beams": beams, "sampled beams": sampled_beams, "padded": padded,
    "padded beams": padded_beams, "chunked": chunked, "prompt lookup": prompt_lookup, "assisted": assisted,
    "chat": chat, "reset": reset, "copied": copied,
}  # fmt: skip
MODELS = ("random-llama", "random-qwen2", "random-gemma3", "random-mistral:sliding_window=24")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_mode_gives_the_tokens_of_a_dynamic_cache(name: str, mode: str) -> None:
    model = random_model(name)
    with torch.no_grad():
        expected = MODES[mode](with_attention(model, "sdpa"), plain_cache(model))
        for implementation in ("sdpa", "quantkv"):
            cache = QuantizedCache(model.config, SPEC)
            tokens = MODES[mode](with_attention(model, implementation), cache)
            assert torch.equal(tokens, expected), implementation
            assert cache.num_quantized_layers == len(cache.layers)


@pytest.mark.parametrize(
    "text", ["int4-head+r8+f16+s2+k8", "int3-channel@g16+r8+f16+s2+k8", "kivi-2", "fp8-e4m3+r8"]
)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_runs_on_lossy_formats_with_closed_form_bytes(
    text: str, mode: str, tiny_llama: Any
) -> None:
    cache = QuantizedCache(tiny_llama.config, text)
    with torch.no_grad():
        tokens = MODES[mode](with_attention(tiny_llama, "quantkv"), cache)
    assert tokens.shape[1] > PROMPT
    assert cache.nbytes >= cache.used_nbytes > 0
    if mode in ("greedy", "padded", "chunked"):
        assert cache.nbytes == cache.predicted_nbytes()
