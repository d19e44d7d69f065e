"""Logits that are not finite: the exact cache's own leave no number and no verdict, a format's are its
fault."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from runs import token_ids
from torch import Tensor

from quantkv import (
    QuantKVError,
    check,
    evaluate,
    load_model,
    long_generation,
    parse_spec,
    perplexity,
    retrieval,
)
from quantkv.checking.judge import judge
from quantkv.data import Text
from quantkv.instruments.divergence import compare, finite
from quantkv.instruments.verdict import Thresholds, Verdict
from quantkv.measurements.inside.inspection import inspect

TEXT = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
SPEC = "int4-head+r8+f16"
OWN = "exact cache itself gives .*not finite"
NAN, INF = float("nan"), float("inf")


def broken(value: float, *, token: int | None = None) -> tuple[Any, Any]:
    """A model with `value` in one logit: of every token, or of those after a `token`."""
    model, tok = load_model("random-llama")

    def spoil(module: Any, inputs: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., 7] = value
        return output

    def spoil_state(module: Any, inputs: Any, output: Tensor) -> Tensor:
        return output.masked_fill((inputs[0] == token)[..., None], value)

    if token is None:
        model.lm_head.register_forward_hook(spoil)
    else:
        model.model.embed_tokens.register_forward_hook(spoil_state)
    return model, tok


@pytest.mark.parametrize("value", [NAN, INF])
def test_no_number_where_the_exact_cache_is_not_finite(value: float) -> None:
    model, tok = broken(value)
    with pytest.raises(QuantKVError, match=OWN):
        perplexity(model, token_ids(1, 200)[0], SPEC, context=100, score=8, windows=2)
    with pytest.raises(QuantKVError, match=OWN):
        inspect(model, token_ids(1, 200)[0], [SPEC], context=100)
    with pytest.warns(UserWarning, match=OWN):
        (row,) = evaluate(model, tok, [SPEC], text=TEXT, contexts=[96], score=8, windows=2).rows
    assert row["status"] == "failed" and row["quality"] is None and "exact cache itself" in row["reason"]
    found = check(model, tok, [SPEC], text=TEXT, context=96, windows=2, score=8)
    assert found.verdict is Verdict.UNCHECKED and "exact cache itself" in found.formats[0].findings[0].words


@pytest.mark.parametrize("value", [NAN, INF])
def test_neither_retrieval_nor_generation(value: float) -> None:
    model, tok = broken(value)
    tasks: dict[str, Any] = {
        "tasks": ["passkey"],
        "lengths": [256],
        "depths": [0.5],
        "samples": 1,
        "tail": 64,
    }
    with pytest.warns(UserWarning, match=OWN):
        rows = retrieval(model, tok, [SPEC], text=TEXT, **tasks).rows
    for mode in ("greedy", "sample"):
        with pytest.warns(UserWarning, match=OWN):
            rows += long_generation(model, tok, [SPEC], text=TEXT, contexts=[96], tokens=8, modes=[mode]).rows
    assert [row["status"] for row in rows] == ["failed"] * 3


def test_some_windows_that_are_not_finite_leave_no_mean() -> None:
    """Token 255 stands in the second of two windows alone."""
    model, _ = broken(NAN, token=255)
    ids = token_ids(1, 202, vocab=250)[0]
    ids[190] = 255
    assert perplexity(model, ids[:180], SPEC, context=60, score=8, windows=2).tokens_scored == 16
    with pytest.raises(QuantKVError, match="of window 2 of 2"):
        perplexity(model, ids, SPEC, context=60, score=60, windows=2)


def test_tokens_that_cannot_come_are_no_fault() -> None:
    """A logit of −inf is a token of probability 0, in both."""
    model, _ = broken(-INF)
    found = perplexity(model, token_ids(1, 200, vocab=7)[0], SPEC, context=100, score=16, windows=2)
    assert math.isfinite(found.kl_mean) and math.isfinite(found.nll) and found.top1_agreement > 0
    assert perplexity(model, token_ids(1, 200, vocab=7)[0], "exact", context=100, score=8).kl_mean == 0


def test_a_format_that_is_not_finite_is_blamed() -> None:
    """Its rows agree with nothing, whatever token NaN happens to point to."""

    def spoils(x: Tensor) -> Tensor:
        return x * NAN

    model, _ = load_model("random-llama")
    ids = token_ids(1, 300)[0]
    found = perplexity(model, ids, spoils, context=200, score=16, windows=2)
    assert math.isnan(found.kl_mean) and found.top1_agreement == found.top5_agreement == 0
    assert "NLL or KL is not finite with this format" in found.flags
    verdict = judge(found.to_dict(), model, parse_spec(SPEC), Thresholds())[0]
    assert verdict.verdict is Verdict.UNFIT and "with this format" in verdict.words


def test_rows_that_are_distributions() -> None:
    rows = torch.tensor([[0.0, 1.0], [-INF, 1.0], [NAN, 1.0], [INF, 1.0], [-INF, -INF]])
    assert finite(rows).tolist() == [True, True, False, False, False]
    ok = torch.zeros(5, 2)
    scores = compare(ok, rows, torch.ones(5, dtype=torch.long))
    assert scores.top1.tolist() == [True, True, False, False, False]
    assert scores.top5.tolist() == [1, 1, 0, 0, 0]
