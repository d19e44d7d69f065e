"""The decode-exact pass over model families: equal to decoding through the cache, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import family_model
from runs import left_padded, logits_in_calls, positions, with_attention
from support.architectures import tiny_model
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quantkv import (
    QuantizedCache,
    QuantKVError,
    UnsupportedError,
    cache_argument,
    long_generation,
    parse_spec,
    perplexity,
    retrieval,
    simulate,
)
from quantkv.data import Text
from quantkv.decode_exact.one_pass import one_pass
from quantkv.instruments.huggingface import keeping_cache
from quantkv.measurements.packed_reads import packed_read_fraction
from quantkv.measurements.running import prefilled
from quantkv.models import byte_tokenizer
from quantkv.quiet import quiet

SPEC = "int4-head+r8+f4+s2+sliding"
SPECS = (SPEC, "k.int4-channel@g16+r8+f16+v.int4-head+r4+f4+s2+k8+sliding")
PROMPT, TOTAL = 24, 44
NEAR = 0.1
"""Largest difference to decoding, of what the format itself changes: linear layers compute in float32, and a
rounding that falls the other way shows."""
SHARED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
WIDE = SHARED | {"per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}}}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {}, "qwen3_5_text": {}, "lfm2_moe": {}, "jamba": {}, "hrm_text": {}, "bart": {},
    "llama4_text": {}, "diffllama": {},
    "gemma3n_text": SHARED, "gemma4_text": WIDE, "gemma4_unified_text": SHARED,
}  # fmt: skip
ITSELF = "computes attention itself, or with other keys and values than it caches"
REFUSED = {
    "bloom": ITSELF, "gpt_neo": ITSELF, "deepseek_v3": ITSELF, "minicpm3": ITSELF,
    "doge": "outside attention", "moshi": "caches its last 16 tokens",
    "bamba": "linear layers give other logits",
    "openai-gpt": "leaves the cache .* empty",
}  # fmt: skip


def ids(rows: int = 1) -> Tensor:
    return torch.randint(3, 100, (rows, TOTAL), generator=torch.Generator().manual_seed(0))


def decoded(model: Any, spec: Any, mask: Tensor | None = None) -> Tensor:
    """Logits of decoding token by token through the packed cache, after a prompt in one call."""
    calls = [PROMPT] + [1] * (TOTAL - PROMPT)
    cache, rows = QuantizedCache(model.config, spec), 1 if mask is None else len(mask)
    with torch.inference_mode():
        return logits_in_calls(with_attention(model, "quantkv"), ids(rows), cache, calls, mask)


def in_one_pass(model: Any, spec: Any, mask: Tensor | None = None) -> Tensor:
    options = {} if mask is None else {"attention_mask": mask, "position_ids": positions(mask)}
    with torch.inference_mode(), simulate(model, spec, prefill=PROMPT):
        return model(ids(1 if mask is None else len(mask)), use_cache=False, **options).logits


def as_a_tail(model: Any, spec: str) -> Tensor:
    """The decoded part alone, on a plain cache of the prompt."""
    cache, _ = prefilled(model, ids()[:, :PROMPT])
    with torch.inference_mode(), simulate(model, spec, prefill=PROMPT):
        return model(ids()[:, PROMPT:], use_cache=True, **{cache_argument(model): cache}).logits


def distance(logits: Tensor, model: Any, expected: Tensor) -> float:
    """How far from decoding, in units of what the format changes; `logits` may be those of the tail alone."""
    last = logits.shape[1]
    effect = (expected - decoded(model, "exact+sliding"))[:, -last:]
    return float((logits - expected[:, -last:]).norm() / effect.norm())


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_is_decoding(family: str) -> None:
    model = family_model(family, **FAMILIES[family])
    expected = decoded(model, SPEC)
    assert distance(in_one_pass(model, SPEC), model, expected) <= NEAR
    if family == "jamba":
        with pytest.raises(UnsupportedError, match="whole sequence in one pass"):
            as_a_tail(model, SPEC)
        return
    assert distance(as_a_tail(model, SPEC), model, expected) <= NEAR


@pytest.mark.long("its first case imports the families that it builds")
@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text", "hrm_text"])
def test_an_override_by_layer_goes_with_the_layer_that_caches(family: str) -> None:
    """Layers 2 and 3 of the sharing models read layers 0 and 1, and each module of HRM caches several layers:
    `l2-3` names cached layers, not the modules that read them."""
    model = family_model(family, **FAMILIES[family])
    for layers, own in ((0, "exact+r0+f4+s0"), (1, "int2-head+r8+f4+s0"), ("2-3", "int2-head+r0+f4+s0")):
        spec = parse_spec(SPEC).with_layers({layers: f"{own}+k0"})
        expected = decoded(model, spec)
        assert distance(in_one_pass(model, spec), model, expected) <= NEAR


@pytest.mark.parametrize("family", ["bart", "gemma4_text", "qwen3_next"])
def test_rows_with_padding(family: str) -> None:
    model, mask = family_model(family, **FAMILIES[family]), left_padded([0, 9], TOTAL)
    expected = decoded(model, SPEC, mask)
    if family == "bart":  # takes no position ids
        with torch.inference_mode(), simulate(model, SPEC, prefill=PROMPT):
            logits = model(ids(2), attention_mask=mask, use_cache=False).logits
    else:
        logits = in_one_pass(model, SPEC, mask)
    effect = (expected - decoded(model, "exact+sliding", mask))[mask.bool()]
    assert (logits - expected)[mask.bool()].norm() <= NEAR * effect.norm() and effect.norm() > 0


@pytest.mark.parametrize("family", REFUSED)
def test_what_is_not_decoding_is_refused_by_name(family: str) -> None:
    model = family_model(family)
    with pytest.raises(UnsupportedError, match=REFUSED[family]):
        in_one_pass(model, SPEC)
    with pytest.raises(UnsupportedError, match=REFUSED[family]):
        perplexity(model, ids()[0], SPEC, context=PROMPT, score=8, windows=1)


@pytest.mark.parametrize("family", ["qwen3_next", "gemma3n_text", "jamba", "lfm2_moe"])
def test_perplexity_is_that_of_decoding(family: str) -> None:
    model = family_model(family, **FAMILIES[family])
    found = perplexity(model, ids()[0], SPEC, context=PROMPT, score=TOTAL - PROMPT - 1, windows=1)
    logits = {spec: decoded(model, spec)[0, PROMPT:-1].log_softmax(-1) for spec in (SPEC, "exact+sliding")}
    kl = (logits["exact+sliding"].exp() * (logits["exact+sliding"] - logits[SPEC])).sum(-1).mean()
    assert found.kl_mean == pytest.approx(float(kl), rel=0.05) and kl > 1e-4
    assert found.bits_cache is not None and found.bits_packed is not None
    baseline = perplexity(model, ids()[0], "dynamic", context=PROMPT, score=TOTAL - PROMPT - 1, windows=1)
    assert baseline.kl_mean < 0.01 * float(kl)


@pytest.mark.parametrize("family", ["qwen3_next", "gemma4_text"])
def test_reads_of_a_cache_are_those_of_the_pass(family: str) -> None:
    """Linear layers read no keys, and layers that share read those of another layer."""
    model = family_model(family, **FAMILIES[family])
    with torch.inference_mode(), simulate(model, SPEC, prefill=PROMPT) as simulation:
        model(ids(), use_cache=False)
    cache = QuantizedCache(model.config, SPEC)
    told = packed_read_fraction(cache, PROMPT, [1] * (TOTAL - PROMPT))
    assert told == pytest.approx(simulation.packed_read_fraction) and told > 0.2


def test_sharing_layers_read_the_last_one_of_their_kind() -> None:
    model = family_model("gemma4_text", **WIDE)
    assert one_pass(model).calls == ((0, 0), (1, 1), (2, 0), (3, 1))
    assert one_pass(tiny_model("llama")).calls == ((0, 0), (1, 1))


def test_a_cache_that_keeps_everything_has_the_states_of_linear_layers() -> None:
    model = family_model("qwen3_next")
    cache = keeping_cache(model.config)
    with torch.inference_mode():
        expected = model(ids(), use_cache=False).logits
        got = [
            model(part, use_cache=True, **{cache_argument(model): cache}).logits
            for part in ids().split([PROMPT, TOTAL - PROMPT], 1)
        ]
    torch.testing.assert_close(torch.cat(got, 1), expected, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_every_family_is_decoding_or_refused(family: str) -> None:
    try:
        model = family_model(family)
        expected = {spec: decoded(model, spec) for spec in SPECS}
    except Exception as error:
        pytest.skip(f"no tiny model that a packed cache serves: {error}")
    for spec in SPECS:
        for run in (in_one_pass, as_a_tail):
            try:
                logits = run(model, spec)
            except QuantKVError as error:
                assert isinstance(error, UnsupportedError)
                continue
            assert distance(logits, model, expected[spec]) <= NEAR, (spec, run)


@pytest.mark.parametrize("family", ["qwen3_next", "gemma3n_text", "gemma4_text", "jamba"])
def test_retrieval_and_generation_run_on_them(family: str) -> None:
    """Their exact cache is the model's own: the lossless format says the same, a coarse one does not."""
    settings = FAMILIES[family] | {"vocab_size": 256, "max_position_embeddings": 1024}
    if "per_layer_config" in settings or family == "gemma3n_text":
        settings |= {"vocab_size_per_layer_input": 256}
    with quiet():
        model = tiny_model(family, **settings)
    text = Text("words", "the quick brown fox. " * 99, "f" * 64, "")
    formats = ["exact+r8+f4+sliding", "int2-head+r8+f4+sliding"]
    options: dict[str, Any] = {"lengths": [256], "depths": [0.5], "samples": 2, "tail": 64, "text": text}
    for row in retrieval(model, byte_tokenizer(), formats, tasks=["passkey"], **options).rows:
        found, lossless = row["retrieval"], row["requested"]["format"] == formats[0]
        assert (found["log_prob"] == pytest.approx(found["log_prob_ref"], rel=1e-3)) == lossless
        assert found["packed_read_fraction"] > 0.1
    for row in long_generation(model, byte_tokenizer(), formats, contexts=[96], tokens=16, text=text).rows:
        assert (row["generation"]["kl_mean"] < 1e-4) == (row["requested"]["format"] == formats[0])
