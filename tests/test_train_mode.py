"""A model with dropout in train mode is measured without it, and is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runs import token_ids

from quantkv import check, evaluate, long_generation, perplexity, retrieval, simulate
from quantkv.data import Text
from quantkv.measurements.inside.inspection import inspect
from quantkv.models import byte_tokenizer, random_model

TEXT = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
SPEC = "int8-head+r8+f16"
SHORT: dict[str, Any] = {"text": TEXT, "windows": 1, "score": 8}
MEASURES: dict[str, Callable[[Any], Any]] = {
    "perplexity": lambda m: perplexity(m, token_ids(1, 200)[0], SPEC, context=96, score=8, windows=1).kl_mean,
    "dynamic": lambda m: perplexity(m, token_ids(1, 200)[0], "dynamic", context=96, score=8, windows=1).nll,
    "bf16 twin": lambda m: perplexity(
        m, token_ids(1, 200)[0], SPEC, context=96, score=8, windows=1, scale_bf16=True
    ).scale_bf16_kl,
    "evaluate": lambda m: evaluate(m, byte_tokenizer(), [SPEC], contexts=[96], **SHORT).rows[0]["quality"],
    "check": lambda m: check(m, byte_tokenizer(), [SPEC], context=96, **SHORT).formats[0].figures["kl_mean"],
    "simulate": lambda m: _simulated(m),
    "retrieval": lambda m: retrieval(
        m, byte_tokenizer(), [SPEC], tasks=["passkey"], lengths=[256], depths=[0.5], samples=1, tail=64,
        text=TEXT,
    ).rows[0]["retrieval"]["log_prob"],
    "generation": lambda m: long_generation(
        m, byte_tokenizer(), [SPEC], contexts=[96], tokens=8, prompts=1, text=TEXT
    ).rows[0]["generation"]["kl_mean"],
    "inspect": lambda m: inspect(m, token_ids(1, 200)[0], [SPEC], context=96).errors["output_error"].sum(),
}  # fmt: skip


def _simulated(model: Any) -> float:
    with torch.no_grad(), simulate(model, SPEC, prefill=60):
        return float(model(token_ids(1, 96)).logits.sum())


@pytest.mark.parametrize("name", MEASURES)
def test_dropout_is_off_while_measuring_and_back_after(name: str) -> None:
    model = random_model("random-gpt2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5)
    expected = MEASURES[name](model)
    model.train()
    model.transformer.h[0].eval()
    before = {path: module.training for path, module in model.named_modules()}
    found = MEASURES[name](model)
    assert found == (expected if isinstance(expected, dict) else pytest.approx(expected, rel=1e-9))
    assert {path: module.training for path, module in model.named_modules()} == before
    assert model.training and not model.transformer.h[0].training


def test_train_mode_comes_back_after_an_error() -> None:
    model = random_model("random-gpt2").train()
    with pytest.raises(RuntimeError, match="inside"), simulate(model, SPEC):
        raise RuntimeError("inside")
    assert all(module.training for module in model.modules())
