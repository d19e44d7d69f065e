"""SmolLM2 with int8 keys and values: beams, prompt lookup and ragged batches; judged along the exact
cache's own text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import left_padded, logits_in_calls, plain_cache, with_attention
from torch import Tensor

from quantkv import QuantizedCache, cache_argument, load_text
from quantkv.data import tokenize

PROMPT, NEW = 160, 48
LENGTHS = (160, 131, 97, 40)
pytestmark = pytest.mark.real


@pytest.fixture
def prompt(smollm2: tuple[Any, Any]) -> Tensor:
    return tokenize(load_text("python-docs"), smollm2[1])[None, 9000 : 9000 + PROMPT]


def generated(model: Any, ids: Tensor, cache: Any, **options: Any) -> Tensor:
    settings = {
        "max_new_tokens": NEW,
        "min_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": 2,
        **options,
    }
    with torch.no_grad():
        return model.generate(ids, **{cache_argument(model): cache}, **settings)


def agreement(model: Any, text: Tensor, mask: Tensor | None = None) -> float:
    """Share of the next tokens that int8 and exact caches agree on, one at a time along `text` after the
    prompt."""
    sizes, choices = [PROMPT, *[1] * (text.shape[1] - PROMPT)], []
    for implementation, cache in (
        ("sdpa", plain_cache(model)),
        ("quantkv", QuantizedCache(model.config, "int8-head")),
    ):
        with torch.no_grad():
            logits = logits_in_calls(with_attention(model, implementation), text, cache, sizes, mask)
        choices.append(logits[:, PROMPT:].argmax(-1))
    return (choices[0] == choices[1]).float().mean().item()


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"prompt_lookup_num_tokens": 4}], ids=["3 beams", "lookup"]
)
def test_modes_run_and_agree_with_the_exact_cache(
    smollm2: tuple[Any, Any], prompt: Tensor, options: dict
) -> None:
    model = with_attention(smollm2[0], "quantkv")
    tokens = generated(model, prompt, QuantizedCache(model.config, "int8-head"), **options)
    assert tokens.shape == (1, PROMPT + NEW)
    text = generated(with_attention(model, "sdpa"), prompt, plain_cache(model), **options)
    assert agreement(model, text) >= 0.99


def test_ragged_batch_runs_and_agrees_with_the_exact_cache(smollm2: tuple[Any, Any], prompt: Tensor) -> None:
    pads = [PROMPT - length for length in LENGTHS]
    mask = left_padded(pads, PROMPT + NEW)
    ids = prompt.repeat(len(LENGTHS), 1).masked_fill(mask[:, :PROMPT] == 0, 2)
    model = with_attention(smollm2[0], "quantkv")
    cache = QuantizedCache(model.config, "int8-head")
    tokens = generated(model, ids, cache, attention_mask=mask[:, :PROMPT])
    assert tokens.shape == (4, PROMPT + NEW)
    assert cache.layers[0].key_store.pads == pads
    text = generated(with_attention(model, "sdpa"), ids, plain_cache(model), attention_mask=mask[:, :PROMPT])
    assert agreement(model, text, mask) >= 0.99
