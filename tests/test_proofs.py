"""The five formats that each need another part of the contract: a rotation, the state of a row, positions, a
table behind a norm, a sparse term. Lists of formats elsewhere hold them too; what those lists do not reach
stands here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from default_specs import PROOFS
from runs import left_padded, logits_in_calls, plain_cache, positions, token_ids, with_attention
from torch import Tensor

from quantkv import QuantizedCache, parse_spec, simulate
from quantkv.models import random_model
from quantkv.testing import check_codec

LIMIT = 1e-6
CONTEXT, TOTAL = 70, 110
BITS = dict(zip(PROOFS, (4.5, 4.5, 4.5, 3.25, 3.875), strict=True))
"""Of keys at head_dim 64: 4 + 32 / 64 for a scale and a zero, 3 + 16 / 64, 3 + (32 + 24) / 64."""

pytestmark = pytest.mark.usefixtures("no_gradients")


def literal(
    model: Any, spec: str, ids: Tensor, mask: Tensor, attention: str
) -> tuple[Tensor, QuantizedCache]:
    """Token by token through the real cache, behind the prompt."""
    cache = QuantizedCache(model.config, spec)
    sizes = [CONTEXT] + [1] * (TOTAL - CONTEXT)
    logits = logits_in_calls(with_attention(model, attention), ids, cache, sizes, mask)
    model.set_attn_implementation("sdpa")
    return logits.double().log_softmax(-1), cache


def at_once(model: Any, spec: str, ids: Tensor, mask: Tensor) -> Tensor:
    with simulate(model, spec, prefill=CONTEXT):
        logits = model(ids, attention_mask=mask, position_ids=positions(mask), use_cache=False).logits
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize("text", PROOFS)
def test_bits_by_hand(text: str) -> None:
    layout = parse_spec(text).halves[0].layout(3, 64, torch.float32)
    assert layout.bits_per_element == BITS[text]


@pytest.mark.parametrize("text", PROOFS)
def test_in_float64_the_pass_is_decoding_with_padding_too(text: str) -> None:
    model, ids = random_model("random-llama", dtype=torch.float64), token_ids(3, TOTAL)
    mask = left_padded([0, 3, 21], TOTAL)
    expected, cache = literal(model, text, ids, mask, "sdpa")
    gap = (at_once(model, text, ids, mask) - expected)[mask.bool()].abs().max()
    assert all(store.packed(row) > 0 for store in _stores(cache) for row in range(3))
    assert gap <= LIMIT


@pytest.mark.parametrize("text", PROOFS)
def test_in_float32_the_distributions_are_those_of_decoding(text: str) -> None:
    """Through the fused attention, padded rows among them."""
    model, ids = random_model("random-llama"), token_ids(2, TOTAL)
    mask = left_padded([0, 9], TOTAL)
    expected, one_pass = literal(model, text, ids, mask, "quantkv")[0], at_once(model, text, ids, mask)
    divergence = (expected.exp() * (expected - one_pass)).sum(-1)[:, CONTEXT:].mean().item()
    assert 0 <= divergence <= LIMIT


@pytest.mark.parametrize("text", PROOFS)
def test_rows_are_moved_with_all_that_is_theirs(text: str, tmp_path: Path) -> None:
    """Reordered, saved and loaded, forked: each goes on as a cache that was given its rows from the start."""
    model = with_attention(random_model("random-llama"), "quantkv")
    ids, rest, order = token_ids(2, 90), token_ids(2, 20, seed=4), torch.tensor([1, 0])
    cache, straight = (QuantizedCache(model.config, text) for _ in range(2))
    logits_in_calls(model, ids, cache, [90])
    logits_in_calls(model, ids[order], straight, [90])
    cache.reorder_cache(order)
    cache.save(tmp_path / "cache.safetensors")
    loaded = QuantizedCache.load(tmp_path / "cache.safetensors", model.config, text)
    expected = logits_in_calls(model, rest, straight, [1] * 20)
    for moved in (cache.fork(), loaded, cache):
        assert torch.equal(logits_in_calls(model, rest, moved, [1] * 20), expected)
    assert straight.nbytes == straight.predicted_nbytes()


@pytest.mark.parametrize("text", PROOFS)
def test_each_stores_other_numbers_than_the_model_has(text: str) -> None:
    """So that what is compared above could differ."""
    model, ids = random_model("random-llama"), token_ids(1, TOTAL)
    exact = logits_in_calls(with_attention(model, "sdpa"), ids, plain_cache(model), [TOTAL]).log_softmax(-1)
    mask = left_padded([0], TOTAL)
    assert (at_once(model, text, ids, mask) - exact)[:, CONTEXT:].abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("text", PROOFS)
def test_they_keep_the_contract(text: str) -> None:
    check_codec(text)


def _stores(cache: QuantizedCache) -> list[Any]:
    return [store for layer in cache.quantized_layers for store in (layer.key_store, layer.value_store)]
