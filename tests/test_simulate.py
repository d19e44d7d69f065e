"""The decode-exact pass: one forward equals literal token-by-token decoding through the packed cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from default_specs import COMBINATIONS, MIXED, PRESETS
from runs import left_padded, logits_in_calls, plain_cache, positions, token_ids, with_attention
from torch import Tensor
from transformers import DynamicCache

from quantkv import CacheSpec, QuantizedCache, QuantKVError, cache_argument, parse_spec, simulate
from quantkv.decode_exact.simulate import protocol_calls
from quantkv.models import random_model

LIMIT = 1e-6
"""Largest difference of log-probabilities in float64; correct code stays near 1e-13."""
POLICIES = {"short": (2, 8, 32), "no sinks, no window": (0, 0, 32), "long": (4, 40, 64)}
"""(sinks, recent, flush); published presets have their own and are varied by hand below."""
PUBLISHED = {"short": "+s2+k0", "no sinks, no window": "", "long": "+r32+f32+s4"}

pytestmark = pytest.mark.usefixtures("no_gradients")


def spec_of(name: str, policy: str) -> CacheSpec:
    if name.startswith("kivi"):
        return parse_spec(name + PUBLISHED[policy])
    sinks, recent, flush = POLICIES[policy]
    if parse_spec(name).is_raw:
        return parse_spec(f"{name}+r{recent}+f{flush}+s{sinks}")
    return parse_spec(name, sinks=sinks, recent=recent, flush=flush)


def lengths(spec: CacheSpec) -> tuple[int, int]:
    """Prompt and whole sequence, so that both prompt and decoding see a flush."""
    chunk = max(spec.key.flush, spec.value.flush)
    return (140, 270) if chunk > 64 else (75, 120)


def log_probs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)


def literal(
    model: Any,
    ids: Tensor,
    spec: Any,
    prefill: str,
    context: int,
    mask: Tensor | None = None,
    attn: str = "quantkv",
) -> tuple[Tensor, QuantizedCache]:
    """Log-probabilities from decoding one token at a time through the real cache."""
    arguments, total = protocol_calls(prefill, context), ids.shape[1]
    sizes = list(arguments.get("calls") or [context])
    cache = QuantizedCache(model.config, spec, prefill=arguments.get("prefill_reads", "exact"))
    implementation = model.config._attn_implementation
    logits = logits_in_calls(with_attention(model, attn), ids, cache, sizes + [1] * (total - context), mask)
    model.set_attn_implementation(implementation)
    return log_probs(logits), cache


def in_one_pass(
    model: Any, ids: Tensor, spec: Any, prefill: str, context: int, mask: Tensor | None = None
) -> tuple[Tensor, Any]:
    options = {} if mask is None else {"attention_mask": mask, "position_ids": positions(mask)}
    with simulate(model, spec, **protocol_calls(prefill, context)) as simulation:
        return log_probs(model(ids, use_cache=False, **options).logits), simulation


def furthest(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


# --- float64: the same numbers ---
@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_and_policy(name: str, policy: str) -> None:
    model, spec = random_model("random-llama", dtype=torch.float64), spec_of(name, policy)
    context, total = lengths(spec)
    ids = token_ids(1, total)
    for prefill in ("exact", "final", "chunk:29") if policy == "short" else ("exact",):
        expected, cache = literal(model, ids, spec, prefill, context)
        simulated, simulation = in_one_pass(model, ids, spec, prefill, context)
        assert furthest(simulated, expected) <= LIMIT, prefill
        assert cache.layers[0].value_store.pages.used[0] > 0 and simulation.packed_read_fraction > 0


@pytest.mark.parametrize("name", PRESETS)
def test_prompt_that_streamed_in(name: str) -> None:
    model, spec = random_model("random-llama", dtype=torch.float64), spec_of(name, "short")
    ids = token_ids(1, lengths(spec)[1])
    expected, _ = literal(model, ids, spec, "stream", ids.shape[1])
    assert furthest(in_one_pass(model, ids, spec, "stream", ids.shape[1])[0], expected) <= LIMIT


FAMILIES = ("random-qwen2", "random-gemma3", "random-mistral")


@pytest.mark.parametrize(("number", "text"), list(enumerate([*MIXED, *COMBINATIONS[::5]])))
def test_other_formats_and_models(number: int, text: str) -> None:
    model = random_model(FAMILIES[number % 3], dtype=torch.float64)
    ids = token_ids(1, 110)
    for prefill in ("exact", "final"):
        expected, _ = literal(model, ids, text, prefill, 70)
        assert furthest(in_one_pass(model, ids, text, prefill, 70)[0], expected) <= LIMIT


@pytest.mark.parametrize("prefill", ["exact", "final", "chunk:7", "chunk:29", "stream"])
@pytest.mark.parametrize("name", ["int4-head", "int8-channel", MIXED[2]])
def test_batches_with_left_padding(name: str, prefill: str) -> None:
    """Padding shorter and longer than the first chunk of the prompt."""
    model, spec = random_model("random-llama", dtype=torch.float64), spec_of(name, "short")
    context, total = lengths(spec)
    context = total if prefill == "stream" else context
    ids, mask = token_ids(3, total), left_padded([0, 3, 21], total)
    expected, cache = literal(model, ids, spec, prefill, context, mask)
    simulated, simulation = in_one_pass(model, ids, spec, prefill, context, mask)
    assert simulation.pads == cache.layers[0].key_store.pads == [0, 3, 21]
    assert furthest(simulated[mask.bool()], expected[mask.bool()]) <= LIMIT


@pytest.mark.parametrize(("attn", "limit"), [("sdpa", LIMIT), ("eager", 1e-4)])
def test_any_attention_of_the_real_cache(attn: str, limit: float) -> None:
    """Eager attention takes its softmax in float32, whatever the model's dtype."""
    model, ids = random_model("random-llama", dtype=torch.float64), token_ids(2, 120)
    expected, _ = literal(model, ids, "int4-head+r8+f16+s2", "exact", 75, attn=attn)
    assert furthest(in_one_pass(model, ids, "int4-head+r8+f16+s2", "exact", 75)[0], expected) <= limit


@pytest.mark.parametrize("name", ["int4-head", "kivi-2", "int8-channel"])
@pytest.mark.parametrize("parts", [[45], [1, 30, 14], [20, 25]])
def test_tail_after_a_plain_prefill(name: str, parts: list[int]) -> None:
    """The prompt runs once without simulation; per format only the tail runs, in calls of any size."""
    model, spec = random_model("random-llama", dtype=torch.float64), spec_of(name, "short")
    context = lengths(spec)[0]
    ids, cache = token_ids(2, context + 45), plain_cache(model)
    expected, _ = literal(model, ids, spec, "exact", context)
    logits_in_calls(with_attention(model, "sdpa"), ids[:, :context], cache, [context])
    with simulate(model, spec, prefill=context):
        tail = log_probs(logits_in_calls(model, ids[:, context:], cache, parts))
    assert furthest(tail, expected[:, context:]) <= LIMIT


@pytest.mark.parametrize("spec", ["int4-head+r8+f16+s2", "int4-channel@g16+r8+f16+s2+k8+sliding"])
@pytest.mark.parametrize("family", ["random-gemma3", "random-mistral:sliding_window=24"])
def test_sliding_windows(family: str, spec: str) -> None:
    """In one call, and as a tail on a plain cache that drops nothing; one that drops tokens is refused."""
    if "mistral" in family and "sliding" not in spec:
        spec = "int8-head+r4+f4+s0+k0+sliding"  # this model has no other layers
    model, ids = random_model(family, dtype=torch.float64), token_ids(2, 140)
    for prefill in ("chunk:29", "exact"):
        expected, _ = literal(model, ids, spec, prefill, 75)
        whole, counted = in_one_pass(model, ids, spec, prefill, 75)
        assert furthest(whole, expected) <= LIMIT
    caches = [DynamicCache(), plain_cache(model)]
    for cache in caches:
        logits_in_calls(with_attention(model, "sdpa"), ids[:, :75], cache, [75])
    with simulate(model, spec, prefill=75) as simulation:
        tail = log_probs(logits_in_calls(model, ids[:, 75:], caches[0], [65]))
        assert furthest(tail, expected[:, 75:]) <= LIMIT
        assert simulation.packed_read_fraction == pytest.approx(counted.packed_read_fraction)
        if "sliding" in spec:
            with pytest.raises(QuantKVError, match="without a config"):
                logits_in_calls(model, ids[:, 75:], caches[1], [65])


def test_overrides_by_layer() -> None:
    model = random_model("random-llama", dtype=torch.float64, num_hidden_layers=4)
    spec = parse_spec("int4-head+r8+f16+s2").with_layers(
        {"0": "fp16+r4+f8+s1", -1: "int2-channel@g16+r0+f16+s0"}
    )
    ids = token_ids(1, 120)
    expected, _ = literal(model, ids, spec, "exact", 75)
    assert furthest(in_one_pass(model, ids, spec, "exact", 75)[0], expected) <= LIMIT


def test_equality_is_no_accident() -> None:
    """Wrong schedules differ by far more than the limit: what the tests above compare is sensitive."""
    model, ids = random_model("random-llama", dtype=torch.float64), token_ids(1, 120)
    expected, _ = literal(model, ids, "int4-head+r8+f16+s2", "exact", 75)
    for other in ("int4-head+r9+f16+s2", "int4-head+r8+f15+s2", "int4-head+r8+f16+s3", "exact"):
        assert furthest(in_one_pass(model, ids, other, "exact", 75)[0], expected) > 1e-3
    assert furthest(in_one_pass(model, ids, "int4-head+r8+f16+s2", "exact", 74)[0], expected) > 1e-3
    assert furthest(in_one_pass(model, ids, "int4-head+r8+f16+s2", "final", 75)[0], expected) > 1e-3


# --- float32: the same distributions ---
@pytest.mark.parametrize("name", PRESETS)
def test_divergence_of_the_two_paths_in_float32(name: str) -> None:
    model, spec = random_model("random-llama"), spec_of(name, "short")
    context, total = lengths(spec)
    ids = token_ids(1, total)
    expected, _ = literal(model, ids, spec, "exact", context)
    simulated, _ = in_one_pass(model, ids, spec, "exact", context)
    divergence = (expected.exp() * (expected - simulated)).sum(-1)[:, context:].mean().item()
    assert -1e-9 <= divergence <= 1e-6


# --- plain functions ---
def test_a_function_is_a_format() -> None:
    """Rounding to float16 by hand is the format fp16 under the usual policy: packed tokens are rounded."""
    model, ids = random_model("random-llama", dtype=torch.float64), token_ids(1, 200)
    expected, _ = literal(model, ids, "fp16+r64+f32+s4", "exact", 120)
    simulated, simulation = in_one_pass(model, ids, lambda x: x.half().to(x.dtype), "exact", 120)
    assert simulation.simulated and furthest(simulated, expected) <= LIMIT
    plain = log_probs(model(ids).logits)
    assert furthest(in_one_pass(model, ids, lambda x: x, "exact", 120)[0], plain) <= LIMIT
    assert not in_one_pass(model, ids, "fp16", "exact", 120)[1].simulated


# --- what is counted ---
def test_packed_read_fraction_by_hand() -> None:
    """Keys pack in steps of 16 behind 8, values one by one behind 20; query i attends to i + 1 keys."""
    spec = "k.int4-head+r8+f16+v.int4-head+r20+f1+s2"
    _, simulation = in_one_pass(random_model("random-llama"), token_ids(1, 90), spec, "exact", 50)
    packed = sum(max(0, i - 2 - 8) // 16 * 16 + max(0, i - 2 - 20) for i in range(50, 90))
    assert simulation.packed_read_fraction == pytest.approx(packed / (2 * sum(i + 1 for i in range(50, 90))))


def test_packed_read_fraction_of_a_window_and_of_padding_by_hand() -> None:
    """Layer 0 attends to 24 tokens, layer 1 to all; row 1 begins with 9 pads. Both pack 16 behind 8."""
    model = random_model("random-gemma3", sliding_window=24)
    spec, mask = "int4-head+r8+f16+s0+sliding", left_padded([0, 9], 90)
    _, simulation = in_one_pass(model, token_ids(2, 90), spec, "exact", 50, mask)
    pairs = packed = 0
    for pad in (0, 9):
        for i in range(50, 90):
            boundary = pad + (i - pad - 8) // 16 * 16
            for first in (max(pad, i - 23), pad):
                pairs += i + 1 - first
                packed += max(0, boundary - first)
    assert simulation.packed_read_fraction == pytest.approx(packed / pairs)


@pytest.mark.parametrize(("context", "total"), [(90, 90), (20, 60)])
def test_a_pass_that_never_reads_a_packed_key_says_zero(context: int, total: int) -> None:
    spec = "int4-head+r64+f32+s4"
    _, simulation = in_one_pass(random_model("random-llama"), token_ids(1, total), spec, "exact", context)
    assert simulation.packed_read_fraction == 0.0


# --- manners ---
def test_everything_is_undone(tiny_llama: Any) -> None:
    ids, implementation = token_ids(1, 100), tiny_llama.config._attn_implementation
    before = tiny_llama(ids).logits
    with simulate(tiny_llama, "int2-head+r8+f16", prefill=60):
        inside = tiny_llama(ids).logits
    with pytest.raises(RuntimeError, match="inside"), simulate(tiny_llama, "int2-head+r8+f16", prefill=60):
        raise RuntimeError("inside")
    assert tiny_llama.config._attn_implementation == implementation
    assert torch.equal(tiny_llama(ids).logits, before) and not torch.equal(inside, before)


def test_padding_of_one_call_is_forgotten_by_the_next() -> None:
    model, spec = random_model("random-llama", dtype=torch.float64), "int4-head+r8+f16+s2"
    ids, mask = token_ids(2, 100), left_padded([0, 9], 100)
    expected, _ = in_one_pass(model, ids, spec, "exact", 60)
    with simulate(model, spec, prefill=60):
        model(ids, attention_mask=mask, position_ids=positions(mask), use_cache=False)
        again = log_probs(model(ids, use_cache=False).logits)
    assert furthest(again, expected) <= LIMIT


def test_a_quantized_cache_inside_is_refused(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, "int4-head")
    with simulate(tiny_llama, "int4-head"), pytest.raises(QuantKVError, match="plain cache"):
        for _ in range(2):
            tiny_llama(token_ids(1, 9), **{cache_argument(tiny_llama): cache})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefill_reads": "fp"}, "exact, final"),
        ({"prefill": 5, "calls": [5]}, "not both"),
        ({"prefill_reads": "final"}, "prefill"),
    ],
)
def test_wrong_arguments(tiny_llama: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantKVError, match=message), simulate(tiny_llama, "int4-head", **arguments):
        pass


def test_names_of_the_protocol() -> None:
    assert protocol_calls("exact", 100) == {"prefill": 100}
    assert protocol_calls("final", 100) == {"prefill": 100, "prefill_reads": "final"}
    assert protocol_calls("stream", 4) == {"calls": [1, 1, 1, 1]}
    assert protocol_calls("chunk:32", 100) == {"calls": [32, 32, 32, 4]}
    for wrong in ("chunk:0", "chunk", "chunk:x", "prefill"):
        with pytest.raises(QuantKVError, match="chunk:N"):
            protocol_calls(wrong, 100)
