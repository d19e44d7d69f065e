"""Quality through simulate: positions against literal decoding, sharing of prefills, failing arms."""

import pytest
import torch

from quantkv import QuantizedCache, cache_argument, parse_spec, perplexity
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments.divergence import compare
from quantkv.instruments.windows import make_windows
from quantkv.measurements.quality.run import quality_block
from quantkv.models import random_model

CONTEXT, SCORE = 96, 16
SMALL = "int4-head+r8+f16+s2+k8"
IDS = torch.randint(0, 256, (3000,), generator=torch.Generator().manual_seed(7))


def plan(windows=2, span=CONTEXT):
    return make_windows(IDS, span=span, score=SCORE, windows=windows)


def block(model, arms, *, windows=2, **options):
    wins = plan(windows)
    return quality_block(model, wins.at(CONTEXT), arms, context=CONTEXT, starts=wins.starts, **options)


@pytest.fixture
def model():
    return random_model("random-llama", dtype=torch.float64)


def literal_nll(model, ids, spec, calls, prefill="exact"):
    """NLL of each target: the prompt fed in `calls`, then the queries one by one, to the real cache."""
    cache = QuantizedCache(model.config, spec, prefill=prefill)
    model.set_attn_implementation("quantkv")
    logits, position = [], 0
    with torch.no_grad():
        for size in [*calls, *[1] * SCORE]:
            step = ids[None, position : position + size]
            logits.append(model(step, **{cache_argument(model): cache}).logits[0, -1])
            position += size
    targets = ids[CONTEXT + 1 :]
    return torch.stack(logits[len(calls) :]).log_softmax(-1).gather(-1, targets[:, None]).neg()[:, 0]


@pytest.mark.parametrize(
    "prefill, calls", [("exact", [96]), ("chunk:40", [40, 40, 16]), ("stream", [1] * 96), ("final", [96])]
)
def test_scores_are_those_of_decoding_through_the_real_cache(model, prefill, calls):
    result = block(model, {"a": SMALL}, windows=1, protocol={"prefill": prefill}, keep_tokens=True)["a"]
    (ids,) = plan(1).at(CONTEXT)
    literal = literal_nll(model, ids, SMALL, calls, "final" if prefill == "final" else "exact")
    assert result["tokens"]["nll"] == pytest.approx(literal.numpy(), abs=1e-6)
    assert result["quality"]["floor_path_kl"] == pytest.approx(0, abs=1e-12)


def test_the_reference_is_the_model_itself(model):
    quality = perplexity(model, IDS, "exact", context=CONTEXT, score=SCORE, windows=2)
    nll = []
    for ids in plan().at(CONTEXT):
        logits = model(ids[None, :-1]).logits[0, CONTEXT:]
        nll.append(compare(logits, logits, ids[CONTEXT + 1 :]).nll)
    assert quality.nll == quality.nll_ref == pytest.approx(torch.cat(nll).mean().item(), abs=1e-9)
    assert quality.kl_mean == 0 and quality.top1_agreement == 1 and quality.delta_nll == 0
    assert quality.floor_path_kl == pytest.approx(0, abs=1e-12)


def test_packed_read_fraction_by_hand(model):
    """Query i has i + 1 keys; 2 sinks, 8 recent, flush 16: of 96..111 cached tokens 80 to 96 are packed."""
    boundary = {i: 2 + 16 * ((i - 2 - 8) // 16) for i in range(CONTEXT, CONTEXT + SCORE)}
    expected = sum(b - 2 for b in boundary.values()) / sum(i + 1 for i in boundary)
    quality = perplexity(model, IDS, SMALL, context=CONTEXT, score=SCORE, windows=2)
    assert quality.packed_read_fraction == pytest.approx(expected)


def test_formats_are_told_apart(model):
    arms = {name: f"{name}+r8+f16+s2+k8" for name in ("int8-head", "int4-head", "int2-head")}
    result = block(model, arms)
    kl = [result[name]["quality"]["kl_mean"] for name in arms]
    assert 0 < kl[0] < kl[1] / 10 < kl[1] < kl[2]
    bits = [result[name]["quality"]["bits_packed"] for name in arms]
    assert bits == [9.0, 5.0, 3.0]  # head_dim 32: 32 bits of scale and zero for 32 values


def test_bits_are_those_of_a_real_cache_of_that_length(model):
    cache = QuantizedCache(model.config, SMALL)
    for layer in range(2):
        cache.update(*torch.randn(2, 1, 2, CONTEXT, 32, dtype=torch.float64).unbind(0), layer)
    quality = block(model, {"a": SMALL})["a"]["quality"]
    elements = 2 * 2 * 2 * CONTEXT * 32
    assert quality["cache_bytes"] == cache.nbytes
    assert quality["bits_cache"] == pytest.approx(8 * cache.nbytes / elements)
    at_16 = cache.nbytes - cache.exact_nbytes + cache.exact_nbytes / 4  # float64 counted at 16 bits
    assert quality["bits_cache_16"] == pytest.approx(8 * at_16 / elements)
    each = []
    for length in range(CONTEXT, CONTEXT + SCORE):
        each.append(8 * cache.nbytes / (elements / CONTEXT * length))
        for layer in range(2):
            cache.update(*torch.randn(2, 1, 2, 1, 32, dtype=torch.float64).unbind(0), layer)
    assert quality["bits_cache_mean"] == pytest.approx(sum(each) / SCORE)


def test_effective_settings_are_read_back(model):
    ran = block(model, {"a": SMALL})["a"]["effective"]
    assert parse_spec(ran["spec"]) == parse_spec(SMALL)
    assert (ran["attn"], ran["simulated"], ran["layers_quantized"], ran["layers_total"]) == (
        "quantkv",
        False,
        2,
        2,
    )
    assert (ran["sinks"], ran["recent_key"], ran["flush_value"]) == (2, 8, 16)


def test_a_plain_function_is_a_format_labelled_simulated(model):
    def noisy(x):
        return (x * 4).round() / 4

    identity, rounded = block(model, {"same": lambda x: x, "noisy": noisy}).values()
    assert rounded["effective"]["simulated"] and rounded["quality"]["kl_mean"] > 0
    assert rounded["quality"]["bits_packed"] is None and rounded["quality"]["cache_bytes"] is None
    assert identity["quality"]["kl_mean"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("budget, order", [(1e12, "a a b b"), (0, "a b a b")])
def test_arms_finish_one_by_one_where_prefills_fit_and_together_where_not(model, budget, order):
    seen = []
    block(
        model,
        {"a": SMALL, "b": "int8-head+r8+f16+s2"},
        memory_budget=budget,
        progress=lambda what, done, total: seen.append(what),
        on_arm=lambda label, result: seen.append(f"{label} finished"),
    )
    steps = [what for what in seen if what != "prefill"]
    assert [what for what in steps if "finished" not in what] == order.split()
    assert steps.index("a finished") == (2 if budget else 4)
    assert seen.count("prefill") == 2


def test_both_orders_give_the_same_numbers(model):
    arms = {"a": SMALL, "b": "int2-channel@g16+r8+f16"}
    kept, streamed = (block(model, arms, memory_budget=budget) for budget in (1e12, 0))
    assert all(kept[label]["quality"] == streamed[label]["quality"] for label in arms)


@pytest.mark.parametrize("budget", [1e12, 0])
@pytest.mark.parametrize(
    "error, status", [(MemoryError("no room"), "failed"), (UnsupportedError("no"), "skipped")]
)
def test_an_arm_that_fails_does_not_stop_the_others(model, budget, error, status):
    def broken(x):
        raise error

    result = block(model, {"a": SMALL, "broken": broken, "b": SMALL}, memory_budget=budget)
    assert [result[label]["status"] for label in ("a", "broken", "b")] == ["ok", status, "ok"]
    assert str(error) in result["broken"]["reason"] and result["broken"]["quality"] is None
    assert result["a"]["quality"] == result["b"]["quality"]


def test_a_context_inside_the_window_is_refused(model):
    with pytest.raises(QuantKVError, match="no scored token reads a packed value"):
        perplexity(model, IDS, "int4-head+r200", context=CONTEXT, score=SCORE, windows=1)


def test_a_context_beyond_the_model_is_refused():
    model = random_model("random-llama", max_position_embeddings=100)
    with pytest.raises(QuantKVError, match=r"112 tokens .* exceed the model's limit of 100"):
        perplexity(model, IDS, SMALL, context=CONTEXT, score=SCORE, windows=1)


@pytest.mark.parametrize("prefill", ["exactly", "chunk:0", "chunk"])
def test_an_unknown_prefill_is_refused(model, prefill):
    with pytest.raises(QuantKVError, match="legal: exact, final, stream, chunk:N"):
        perplexity(model, IDS, SMALL, context=CONTEXT, score=SCORE, windows=1, prefill=prefill)


def test_the_attention_implementation_is_put_back(model):
    before = model.config._attn_implementation
    block(model, {"a": SMALL})
    assert model.config._attn_implementation == before
