"""`QuantizedCache` as a whole: what it accepts, what it says about itself, and `use`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from default_specs import COMBINATIONS, DEFAULT_SPECS
from runs import IMPLEMENTATIONS, logits_in_calls, plain_cache, token_ids, with_attention
from transformers import DynamicCache, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import quantkv
from quantkv import QuantizedCache, QuantKVError, UnsupportedError, cache_argument, parse_spec
from quantkv.engines import native
from quantkv.models import random_model

SPEC = "int4-head+r8+f16+s2+k8"

pytestmark = pytest.mark.usefixtures("no_gradients")


def config(head_dim: int = 32, heads: int = 2, layers: int = 2) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=heads * head_dim, num_attention_heads=heads, num_key_value_heads=heads, head_dim=head_dim,
        num_hidden_layers=layers, vocab_size=8, intermediate_size=8,
    )  # fmt: skip


ENGINE = "reference" if native.isa() is None else f"native-{native.isa()}"


# --- construction ---
def test_specs_are_names_strings_or_objects() -> None:
    for spec in ("int4-head", str(parse_spec("int4-head")), parse_spec("int4-head")):
        cache = QuantizedCache(config(), spec)
        assert cache.spec == parse_spec("int4-head") and cache.num_quantized_layers == 2
        assert isinstance(cache, DynamicCache) and cache.engine == ENGINE


@pytest.mark.parametrize(
    ("spec", "message"), [("int4-hed", "token-all"), ("int9-head", "legal: 2, 3, 4"), ("bits0", "Presets")]
)
def test_wrong_specs_fail_at_construction(spec: str, message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        QuantizedCache(config(), spec)


def test_wrong_prefill_names_the_legal_ones() -> None:
    with pytest.raises(QuantKVError, match="exact, final"):
        QuantizedCache(config(), SPEC, prefill="chunk")


@pytest.mark.parametrize("head_dim", [40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("sharing", ["token", "channel"])
def test_head_widths_work_or_fail_at_construction(head_dim: int, group: int, sharing: str) -> None:
    """Whether a format fits depends on the head width alone, never on lengths, batch or KV heads."""
    text = f"int4-{sharing}@g{group}" + (f"+f{group}" if sharing == "channel" else "") + "+r8+s2+k4"
    if sharing == "token" and head_dim % group:
        with pytest.raises(QuantKVError) as caught:
            QuantizedCache(config(head_dim), text)
        legal = str(caught.value).partition("legal groups: ")[2]
        assert str(head_dim) in str(caught.value) and all(head_dim % int(g) == 0 for g in legal.split(", "))
        return
    for rows, heads, length in (
        (1, 1, 1),
        (2, 3, 7),
        (3, 2, group),
        (1, 3, 2 * group),
        (2, 1, 2 * group + 9),
    ):
        cache = QuantizedCache(config(head_dim, heads), text)
        x = torch.randn(rows, heads, length, head_dim)
        cache.update(x, x, 0)
        for _ in range(group + 1):
            keys, values = cache.update(x[:, :, :1], x[:, :, :1], 0)
        assert keys.shape == values.shape == (rows, heads, length + group + 1, head_dim)
        assert (keys[:, :, :length] - x).abs().max() < 1.0 and cache.nbytes == cache.predicted_nbytes()


def test_layers_may_differ_in_head_width() -> None:
    if "gemma4_text" not in CONFIG_MAPPING:
        pytest.skip("this transformers has no model whose layers differ")
    from support.architectures import tiny_model

    model = tiny_model("gemma4_text")
    cache = QuantizedCache(model.config, "int4-head+r8+f16+sliding")
    model(token_ids(1, 60, vocab=100), **{cache_argument(model): cache})
    assert [store.head_dim for layer in cache.layers for store in layer.stores] == [16, 16, 32, 32]
    assert cache.nbytes == cache.predicted_nbytes()
    with pytest.raises(QuantKVError, match="16"):
        QuantizedCache(model.config, "int4-token@g32+r8+f16+sliding")


@pytest.mark.parametrize("text", [t for t in COMBINATIONS if t.startswith("int4")])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_prompts_of_any_length(text: str, heads: int) -> None:
    spec, model_config = parse_spec(text), config(heads=heads)
    for length in range(1, 2 * 16 + 1):
        cache, x = QuantizedCache(model_config, spec), torch.randn(1 + length % 3, heads, length, 32)
        cache.update(x, x, 0)
        keys, _ = cache.update(x[:, :, :1], x[:, :, :1], 0)
        assert keys.shape[2] == length + 1 and keys.isfinite().all()


ERRORS = {2: 1.3, 3: 0.85, 4: 0.5, 5: 0.3, 6: 0.15, 8: 0.05, "fp8-e4m3": 0.13, "fp8-e5m2": 0.27}
"""Relative error of decoded logits of the random model, whose scale unrelated logits would miss by 1.4."""


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_every_format_runs_in_a_model(tiny_llama: Any, text: str) -> None:
    """Decoding over several flushes stays as near to the exact model's logits as the bits allow."""
    model, ids = with_attention(tiny_llama, "quantkv"), token_ids(1, 170)
    cache, exact = QuantizedCache(model.config, text), model(ids).logits
    logits = logits_in_calls(model, ids, cache, [120, *[1] * 50])
    error = (logits - exact)[:, 120:].square().mean().sqrt() / exact.square().mean().sqrt()
    spec = cache.spec
    bounds = [ERRORS.get(t.codec, ERRORS.get(t.bits, 0.01)) for t in (spec.key, spec.value)]
    assert error < max(bounds)
    assert (
        logits[:, :120] - exact[:, :120]
    ).abs().max() < 1e-4  # the prompt attends to exact keys and values


# --- what it returns ---
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", [SPEC, "fp32", "fp16", "bf16", "fp8-e4m3"])
def test_dtype_of_the_model_is_kept(implementation: str, dtype: torch.dtype, spec: str) -> None:
    model = random_model("random-llama", dtype=dtype)
    cache = QuantizedCache(model.config, spec)
    logits = logits_in_calls(
        with_attention(model, implementation), token_ids(1, 50), cache, [30, 10, *[1] * 10]
    )
    assert logits.dtype == dtype and logits.isfinite().all()
    for layer in cache.layers:
        assert layer.keys.dtype == layer.keys.clone().dtype == layer.values.clone().dtype == dtype


def test_fused_attention_equals_the_decoding_path(tiny_llama: Any) -> None:
    ids, sizes, logits = token_ids(2, 130), [60, 20, *[1] * 50], {}
    for implementation in IMPLEMENTATIONS:
        cache = QuantizedCache(tiny_llama.config, SPEC)
        model = with_attention(tiny_llama, implementation)
        logits[implementation] = logits_in_calls(model, ids, cache, sizes)
        decodings = cache.describe()["materialized"].sum()
        assert decodings == 0 if implementation == "quantkv" else decodings >= 2 * 51
    assert (logits["quantkv"] - logits["sdpa"]).abs().max() < 1e-4
    assert (logits["eager"] - logits["sdpa"]).abs().max() < 1e-4


def test_prefill_final_reads_what_the_store_ends_up_holding(tiny_llama: Any) -> None:
    model, ids = with_attention(tiny_llama, "quantkv"), token_ids(1, 60)
    logits = {}
    for prefill in ("exact", "final"):
        cache = QuantizedCache(model.config, SPEC, prefill=prefill)
        logits[prefill] = logits_in_calls(model, ids, cache, [60])
        logits[f"{prefill}, nothing packed"] = logits_in_calls(
            model, ids[:, :25], QuantizedCache(model.config, SPEC, prefill=prefill), [25]
        )
    exact = logits_in_calls(model, ids, plain_cache(model), [60])
    assert (logits["exact"] - exact).abs().max() < 1e-4
    assert (logits["final"] - exact)[:, 2:].abs().max() > 0.01
    assert (logits["final, nothing packed"] - exact[:, :25]).abs().max() < 1e-4


# --- what it says about itself ---
def test_describe_has_a_row_per_layer(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, parse_spec(SPEC).with_layers({-1: "fp16"}))
    logits_in_calls(tiny_llama, token_ids(1, 60), cache, [60])
    table = cache.describe()
    assert table.index.tolist() == [0, 1]
    assert table["quantized"].tolist() == [True, False]
    assert table["format"].tolist() == [SPEC_TEXT, "fp16"]
    assert table["tokens"].tolist() == [60, 60]
    assert table["packed_keys"].tolist() == [48, 60]  # 16 · floor((60 − 10) / 16); fp16 has no window
    assert table["nbytes"].sum() == cache.nbytes


SPEC_TEXT = str(parse_spec(SPEC))


def test_sliding_layers_stay_exact_and_say_why(tiny_gemma3: Any) -> None:
    cache = QuantizedCache(tiny_gemma3.config, SPEC)
    assert cache.num_quantized_layers == 1
    logits_in_calls(tiny_gemma3, token_ids(1, 100), cache, [60, *[1] * 40])
    table = cache.describe()
    assert table["quantized"].tolist() == [False, True]
    assert table["format"][0] == "exact" and "liding" in table["why"][0]
    assert table["nbytes"].sum() == cache.nbytes


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 64])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_sliding_windows_wrap_as_in_a_dynamic_cache(implementation: str, length: int) -> None:
    model = random_model("random-gemma3", sliding_window=16, num_hidden_layers=4)
    ids, sizes = token_ids(1, length + 20), [length, *[1] * 20]
    with_attention(model, "sdpa" if implementation == "quantkv" else implementation)
    expected = logits_in_calls(model, ids, plain_cache(model), sizes)
    with_attention(model, implementation)
    exact = logits_in_calls(model, ids, QuantizedCache(model.config, "exact+r8+f8+s2+k8"), sizes)
    assert (exact - expected).abs().max() <= (1e-4 if implementation == "quantkv" else 0.0)
    int8 = logits_in_calls(model, ids, QuantizedCache(model.config, "int8-head+r8+f8+s2"), sizes)
    assert (int8 - expected).abs().max() < 0.3


def test_model_without_a_full_attention_layer_is_unsupported() -> None:
    model = random_model("random-gemma3", layer_types=["sliding_attention", "sliding_attention"])
    with pytest.raises(UnsupportedError, match="liding"):
        QuantizedCache(model.config, SPEC)


def test_config_is_not_changed_by_a_cache() -> None:
    model_config = config(layers=3)
    before = model_config.to_dict()
    spec = parse_spec(LAYERED)
    assert len(QuantizedCache(model_config, spec).layers) == 3
    assert len(QuantizedCache(config(layers=2), spec).layers) == 2
    assert model_config.to_dict() == before and spec == parse_spec(LAYERED)


LAYERED = "int4-head+l0.fp16"


# --- use ---
def generate(model: Any, cache: Any = None, **settings: Any) -> torch.Tensor:
    options = {} if cache is None else {cache_argument(model): cache}
    ids = token_ids(1, 60)
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=40,
        do_sample=False,
        pad_token_id=0,
        **options,
        **settings,
    )


def test_use_equals_a_cache_passed_by_hand_and_is_undone(tiny_llama: Any) -> None:
    before, implementation = generate(tiny_llama), tiny_llama.config._attn_implementation
    by_hand = generate(
        with_attention(tiny_llama, "quantkv"), QuantizedCache(tiny_llama.config, "int2-head+r8+f16")
    )
    tiny_llama.set_attn_implementation(implementation)
    assert not torch.equal(by_hand, before)
    with quantkv.use(tiny_llama, "int2-head+r8+f16") as model:
        assert model is tiny_llama
        assert torch.equal(generate(model), by_hand)
        assert torch.equal(generate(model), by_hand)  # a fresh cache each time
        assert torch.equal(
            generate(model, plain_cache(model)), before
        )  # a cache passed by hand is left alone
    assert tiny_llama.config._attn_implementation == implementation
    assert torch.equal(generate(tiny_llama), before) and "generate" not in vars(tiny_llama)


def test_use_is_undone_after_an_exception(tiny_llama: Any) -> None:
    implementation = tiny_llama.config._attn_implementation
    with pytest.raises(RuntimeError, match="inside"), quantkv.use(tiny_llama, SPEC):
        raise RuntimeError("inside")
    assert tiny_llama.config._attn_implementation == implementation and "generate" not in vars(tiny_llama)


def test_use_with_a_wrong_spec_changes_nothing(tiny_llama: Any) -> None:
    implementation = tiny_llama.config._attn_implementation
    with pytest.raises(QuantKVError), quantkv.use(tiny_llama, "int4-hed"):
        pass
    assert tiny_llama.config._attn_implementation == implementation and "generate" not in vars(tiny_llama)


def test_use_inside_use(tiny_llama: Any) -> None:
    """The inner format holds inside, the outer one again after it."""
    exact = generate(tiny_llama)
    with quantkv.use(tiny_llama, "int2-head+r8+f16"):
        outer = generate(tiny_llama)
        with quantkv.use(tiny_llama, "exact"):
            assert torch.equal(generate(tiny_llama), exact)
        assert torch.equal(generate(tiny_llama), outer) and not torch.equal(outer, exact)
    assert torch.equal(generate(tiny_llama), exact) and "generate" not in vars(tiny_llama)


def test_cache_survives_a_change_of_attention_between_steps(tiny_llama: Any) -> None:
    ids, cache = token_ids(1, 90), QuantizedCache(tiny_llama.config, "exact+r8+f8+s2+k8")
    expected = logits_in_calls(
        with_attention(tiny_llama, "sdpa"), ids, plain_cache(tiny_llama), [50, *[1] * 40]
    )
    logits = [logits_in_calls(with_attention(tiny_llama, "sdpa"), ids[:, :50], cache, [50])]
    for step, start in enumerate(range(50, 90, 8)):
        model = with_attention(tiny_llama, IMPLEMENTATIONS[step % 3])
        logits.append(logits_in_calls(model, ids[:, start : start + 8], cache, [1] * 8))
    assert (torch.cat(logits, 1) - expected).abs().max() < 1e-4
