"""Positions through whole models: the pass is told what the cache is, and a refused call changes nothing."""

from __future__ import annotations

import pytest
import torch
from runs import logits_in_calls, token_ids, with_attention
from support.architectures import tiny_model
from torch import Tensor

from quantkv import QuantizedCache, UnsupportedError, simulate
from quantkv.cache.names import cache_argument
from quantkv.models import random_model

SPEC = "int4-head@unrope.ctr.w16+r8+f16+s2+k8"
CONTEXT, TOTAL = 40, 60
SIZES = [CONTEXT] + [1] * (TOTAL - CONTEXT)

pytestmark = pytest.mark.usefixtures("no_gradients")


def gap(model: torch.nn.Module, ids: Tensor, mask: Tensor | None, start: int | None) -> float:
    """Largest difference of log-probabilities between the pass and decoding, both told `start` or nothing."""
    whole = {} if start is None else {"position_ids": torch.arange(start, start + TOTAL)[None]}
    cache, parts, seen = QuantizedCache(model.config, SPEC), [], 0
    for part in ids.split(SIZES, 1):
        own = {name: x[:, seen : seen + part.shape[1]] for name, x in whole.items()}
        own |= {} if mask is None else {"attention_mask": mask[:, : seen + part.shape[1]]}
        parts.append(model(part, **own, **{cache_argument(model): cache}).logits)
        seen += part.shape[1]
    with simulate(model, SPEC, prefill=CONTEXT):
        at_once = model(ids, **whole, **({} if mask is None else {"attention_mask": mask})).logits
    off = torch.cat(parts, 1).log_softmax(-1) - at_once.log_softmax(-1)
    return float((off if mask is None else off[mask.bool()]).abs().max())


def test_padding_without_position_ids() -> None:
    """The model counts slots then, padding too, and tells the cache so."""
    model = with_attention(random_model("random-llama", dtype=torch.float64), "quantkv")
    mask = torch.ones(2, TOTAL, dtype=torch.long)
    mask[1, :21] = 0
    assert gap(model, token_ids(2, TOTAL), mask, None) <= 1e-6


@pytest.mark.parametrize("family", ["llama", "stablelm"])
def test_rows_that_begin_elsewhere(family: str) -> None:
    """StableLM tells its cache nothing, whatever it is told itself."""
    model = with_attention(tiny_model(family).double().eval(), "quantkv")
    assert gap(model, token_ids(1, TOTAL) % 100 + 3, None, 100) <= 1e-6


@pytest.mark.parametrize("spec", [SPEC, f"int4-head+r8+f16+s2+k8+l1.{SPEC.partition('+')[0]}"])
def test_a_refused_call_changes_no_layer(spec: str) -> None:
    model = with_attention(random_model("random-llama"), "quantkv")
    cache, other = QuantizedCache(model.config, spec), QuantizedCache(model.config, spec)
    ids = token_ids(1, TOTAL)
    for each in (cache, other):
        logits_in_calls(model, ids, each, [TOTAL])
    with pytest.raises(UnsupportedError, match="row 0 is told 0, 1, 2 where 60, 61, 62 would follow"):
        model(ids[:, :3], position_ids=torch.arange(3)[None], **{cache_argument(model): cache})
    assert [layer.get_seq_length() for layer in cache.layers] == [TOTAL, TOTAL]
    again, expected = (model(ids[:, :9], **{cache_argument(model): each}).logits for each in (cache, other))
    assert torch.equal(again, expected)


def test_positions_below_0_are_refused() -> None:
    model = with_attention(random_model("random-llama"), "quantkv")
    cache = QuantizedCache(model.config, SPEC)
    with pytest.raises(UnsupportedError, match="positions from 0 on: row 0 begins at -5"):
        model(token_ids(1, 9), position_ids=torch.arange(-5, 4)[None], **{cache_argument(model): cache})
    assert cache.get_seq_length() == 0


def test_a_model_whose_keys_cannot_be_turned_back_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedError, match="hunyuan_v1_dense turns its keys cannot be undone"):
        QuantizedCache(tiny_model("hunyuan_v1_dense").config, SPEC)
