"""What transformers and applications rely on: signatures, one context with many questions, steps of equal
cost, an import that needs nothing optional."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
from runs import logits_in_calls, token_ids, with_attention
from support import modes
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from quantkv import QuantizedCache, use
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.sliding import QuantizedSlidingLayer
from quantkv.engines import AttentionOptions, attend
from quantkv.models import random_model

PAIRS = [
    (QuantizedLayer, CacheLayerMixin), (QuantizedLayer, DynamicLayer),
    (QuantizedSlidingLayer, DynamicSlidingWindowLayer), (QuantizedCache, Cache),
]  # fmt: skip
SPEC, LONG = "int4-head+r8+f16+s2+k8", "int4-head+r8+f16+s2+k64"


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda c: c.__name__)
def test_every_call_that_fits_their_signature_fits_ours(ours: type, theirs: type) -> None:
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if name.startswith("_"):
            continue
        mine = inspect.signature(getattr(ours, name)).parameters
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in mine.values())
        for parameter in inspect.signature(method).parameters.values():
            assert parameter.name in mine or takes_any, f"{name}({parameter})"
        required = [p for p in mine.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        assert len(required) <= len(inspect.signature(method).parameters), name


def test_a_second_question_is_answered_as_if_it_were_the_first() -> None:
    model = with_attention(random_model("random-llama"), "quantkv")
    context, questions = token_ids(1, 120), [token_ids(1, 30, seed=s) for s in (2, 3)]
    cache, answers = QuantizedCache(model.config, LONG), []
    with torch.no_grad():
        logits_in_calls(model, context, cache, [120])
        for question in questions:
            answers.append(logits_in_calls(model, question, cache, [10, *[1] * 20]))
            cache.truncate(120)
        for question, answer in zip(questions, answers, strict=True):
            fresh = QuantizedCache(model.config, LONG)
            logits_in_calls(model, context, fresh, [120])
            assert torch.equal(logits_in_calls(model, question, fresh, [10, *[1] * 20]), answer)


def test_samples_of_one_session_do_not_know_each_other(tiny_llama: Any) -> None:
    def answers(rows: list[int]) -> list[list[int]]:
        with use(tiny_llama, SPEC):
            prompts = [modes.prompt(tiny_llama, 1, 60, seed=row) for row in rows]
            settings = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
            return [tiny_llama.generate(ids, **settings)[0].tolist() for ids in prompts]

    assert answers([1, 2]) == answers([1]) + answers([2])


class CountOperations(TorchDispatchMode):
    """How many operations ran inside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("text", [SPEC, "int3-channel@g16+r8+f16", "fp8-e4m3+r8", "fp16"])
def test_a_step_costs_no_more_operations_late_than_early(text: str, tiny_llama: Any) -> None:
    cache, most = QuantizedCache(tiny_llama.config, text), []
    x, query = torch.randn(1, 2, 1, 32), torch.randn(1, 4, 1, 32)
    cache.update(x, x, 0)
    for _ in range(1000):
        with torch.no_grad(), CountOperations() as operations:
            keys, values = cache.update(x, x, 0)
            attend(query, keys.kv, values.kv, AttentionOptions(causal=True))
        most.append(operations.count)
    assert max(most[900:]) <= max(most[:200]) and sum(most[800:]) <= 1.05 * sum(most[200:400])


BLOCKED = ("quantkv._native", "datasets", "matplotlib", "triton", "numba", "hqq", "optimum")


@pytest.mark.long("imports torch and transformers anew")
def test_import_and_a_cache_need_nothing_optional() -> None:
    """As if every optional package were broken: a cache works, on the PyTorch engine."""
    code = f"""
import sys, warnings
sys.modules.update(dict.fromkeys({BLOCKED!r}))
warnings.simplefilter("ignore")
import torch, quantkv
from quantkv.models import random_model
model = random_model("random-llama")
cache = quantkv.QuantizedCache(model.config, "int4-head+r8+f16")
model(torch.arange(90)[None], **{{quantkv.cache_argument(model): cache}})
assert cache.engine == "reference" and cache.nbytes == cache.predicted_nbytes() > 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
