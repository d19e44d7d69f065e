"""SmolLM2: the decode-exact pass equals literal decoding for every preset; formats cost what they should."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as once
from typing import Any

import pytest
import torch
from default_specs import PRESETS
from runs import with_attention
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import sdpa_mask

from quantkv import CacheSpec, QuantizedCache, cache_argument, load_text, parse_spec, simulate
from quantkv.cache.hooks import fused_attention, quantkv_attention
from quantkv.data import tokenize

CONTEXT, STEPS = 512, 64
IN_FLOAT32 = ("fp16", "bf16", "fp8-e4m3", "int8-channel", "int4-head", "kivi-2")


def short(name: str) -> CacheSpec:
    """A window so short that tokens decoded here are read packed; published presets keep theirs."""
    return parse_spec(name, recent=8, flush=32)


pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _setting() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


class RowsOfCaches(DynamicCache):
    """Row i of the batch has a cache of its own, so that one pass over the weights serves all formats."""

    def __init__(self, model: Any, caches: list[QuantizedCache]) -> None:
        super().__init__(config=model.config)
        self.caches = caches

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """A tuple with one handle per row for keys and for values."""
        rows = zip(self.caches, key_states.split(1), value_states.split(1), strict=True)
        return tuple(zip(*(cache.update(k, v, layer_idx) for cache, k, v in rows)))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.caches[0].get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.caches[0].get_mask_sizes(query_length, layer_idx)


def attention_by_row(module: Any, query: Tensor, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    rows = zip(query.split(1), key, value, strict=True)
    return torch.cat([quantkv_attention(module, q, k, v, mask, **options)[0] for q, k, v in rows]), None


def norms_in_their_own_dtype(model: Any) -> None:
    """Llama's norms round to float32, which turns differences of 1e-16 into 1e-7 now and then."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = forward.__get__(module)


@dataclass
class Prefilled:
    """A model, a text, and the exact keys and values of its first `CONTEXT` tokens."""

    model: Any
    ids: Tensor

    def __post_init__(self) -> None:
        self.argument, self.cache = cache_argument(self.model), DynamicCache(config=self.model.config)
        self.model(self.ids[:, :CONTEXT], **{self.argument: self.cache}, logits_to_keep=1)

    def literal(self, caches: list[QuantizedCache], steps: int = STEPS) -> Tensor:
        """Log-probabilities `[caches, steps, V]`, one token at a time through real caches."""
        AttentionInterface.register("by_row", attention_by_row)
        AttentionMaskInterface.register("by_row", sdpa_mask)
        rows, logits = RowsOfCaches(self.model, caches), []
        with fused_attention(self.model):
            self.model.set_attn_implementation("by_row")
            for i in range(CONTEXT, CONTEXT + steps):
                token = self.ids[:, i : i + 1].expand(len(caches), 1)
                logits.append(self.model(token, **{self.argument: rows}).logits)
        return torch.cat(logits, 1).double().log_softmax(-1)

    def packed(self, name: str | CacheSpec) -> QuantizedCache:
        """A cache that was given the prompt's keys and values."""
        cache = QuantizedCache(self.model.config, name)
        for index, layer in enumerate(self.cache.layers):
            cache.update(layer.keys, layer.values, index)
        return cache

    def simulated(self, name: str | CacheSpec) -> Tensor:
        """Log-probabilities `[STEPS, V]` from one pass over the rest."""
        cache = copy.deepcopy(self.cache)
        with simulate(self.model, name, prefill=CONTEXT):
            logits = self.model(self.ids[:, CONTEXT:], **{self.argument: cache}).logits
        return logits[0].double().log_softmax(-1)


@pytest.fixture(scope="module")
def prefilled(_smollm2_once: tuple[Any, Any]) -> Any:
    """`prefilled(dtype)` prefills the text once per dtype."""
    model, tokenizer = _smollm2_once
    ids = tokenize(load_text("python-docs"), tokenizer)[None, 5000 : 5000 + CONTEXT + STEPS]

    @once
    def of(dtype: torch.dtype) -> Prefilled:
        if dtype == torch.float32:
            return Prefilled(model, ids)
        double = copy.deepcopy(model).to(dtype)
        norms_in_their_own_dtype(double)
        return Prefilled(double, ids)

    return of


@pytest.fixture(scope="module")
def both_paths(prefilled: Any) -> Any:
    """`both_paths(dtype, names)` gives (simulated, literal) log-probabilities `[STEPS, V]` of each name."""

    @once
    def of(dtype: torch.dtype, names: tuple[str, ...]) -> dict[str, tuple[Tensor, Tensor]]:
        run: Prefilled = prefilled(dtype)
        literal = run.literal([run.packed(short(name)) for name in names])
        return {name: (run.simulated(short(name)), literal[i]) for i, name in enumerate(names)}

    return of


def divergence(reference: Tensor, other: Tensor) -> float:
    """Mean KL(reference ‖ other) in nats."""
    return (reference.exp() * (reference - other)).sum(-1).mean().item()


@pytest.mark.parametrize("name", PRESETS)
def test_decode_exact_equals_literal_decoding_in_float64(both_paths: Any, name: str) -> None:
    simulated, literal = both_paths(torch.float64, tuple(PRESETS))[name]
    assert (simulated - literal).abs().max() <= 1e-6


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_divergence_of_the_two_paths_in_float32(both_paths: Any, name: str) -> None:
    """A last-bit difference flips a stored code now and then. In bf16, where tokens are packed at once, one
    is a large step that the next token reads and passes on: the bound is below what the format costs."""
    simulated, literal = both_paths(torch.float32, IN_FLOAT32)[name]
    assert abs(divergence(literal, simulated)) <= (1e-5 if name == "bf16" else 1e-6)


def test_prompt_through_the_cache_itself_changes_nothing(prefilled: Any, both_paths: Any) -> None:
    """Prefilling with the quantized cache gives it the keys and values that a plain prefill gives."""
    run, simulated = prefilled(torch.float64), both_paths(torch.float64, tuple(PRESETS))["kivi-2"][0]
    cache = QuantizedCache(run.model.config, "kivi-2")
    with fused_attention(run.model):
        run.model(run.ids[:, :CONTEXT], **{run.argument: cache}, logits_to_keep=1)
    assert (run.literal([cache], steps=8)[0] - simulated[:8]).abs().max() <= 1e-6


def test_formats_cost_what_they_should(prefilled: Any) -> None:
    """Orders of size known from longer runs: KL to exact of about 1e-5, 1e-3, 5e-3 and 1e-1."""
    run: Prefilled = prefilled(torch.float32)
    exact = run.simulated("exact")
    costs = {name: divergence(exact, run.simulated(name)) for name in PRESETS}
    assert costs["exact"] == 0 and abs(costs["fp32"]) < 1e-9
    assert costs["fp16"] < 1e-5 and costs["int8-channel"] < 2e-4 and costs["int8-head"] < 2e-4
    assert 1e-4 < costs["kivi-4"] < 1e-2 and 1e-3 < costs["int4-head"] < 3e-2 and 2e-2 < costs["kivi-2"] < 0.5
    assert costs["int8-head"] < costs["k8v4"] < costs["int4-head"] < costs["kivi-2"]
    assert costs["int4-channel"] < costs["int4-head"] and costs["kivi-4"] < costs["kivi-2"] / 10


def test_lossless_cache_generates_the_same_text(smollm2: tuple[Any, Any]) -> None:
    model, tokenizer = smollm2
    inputs = tokenizer("The three most important rules of writing software are", return_tensors="pt")
    settings = {"max_new_tokens": 32, "do_sample": False}
    expected = model.generate(**inputs, **settings)
    for implementation in ("sdpa", "quantkv"):
        cache = QuantizedCache(model.config, "exact+r8+f8+s2+k8")
        tokens = with_attention(model, implementation).generate(
            **inputs, **settings, **{cache_argument(model): cache}
        )
        assert torch.equal(tokens, expected), implementation
