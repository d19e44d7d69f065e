"""Keys and values of different formats: each as if it were alone, for every pair and head width."""

from __future__ import annotations

import pytest
import torch
from stores import round_trip
from transformers import LlamaConfig

from quantkv import QuantizedCache, evaluate, load_model, parse_spec, presets
from quantkv.data import Text
from quantkv.engines import AttentionOptions, attend
from quantkv.engines.attention import attend as reference
from quantkv.store import View

WINDOW = "r8+f16+s2+k8"
CODECS = (
    *(f"int{bits}-head" for bits in (2, 3, 4, 5, 6, 8)),
    "int4-channel@g16",
    "fp8-e4m3",
    "fp16",
    "exact",
)


def filled(text: str, head_dim: int = 64) -> QuantizedCache:
    """One layer of 200 tokens; equal widths get equal tokens."""
    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, num_hidden_layers=1, vocab_size=8
    )
    cache, generator = QuantizedCache(config, text), torch.Generator().manual_seed(head_dim)
    for length in (150, 49, 1):
        x = torch.randn(2, 1, 2, length, head_dim, generator=generator)
        cache.update(x[0], x[1], 0)
    return cache


def views(cache: QuantizedCache) -> list[View]:
    return [store.view() for store in cache.layers[0].stores]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("value", CODECS)
@pytest.mark.parametrize("key", CODECS)
def test_any_pair_is_read_as_its_halves_are_stored(key: str, value: str, head_dim: int) -> None:
    pairs = ((key, value), (key, key), (value, value))
    mixed, keys, values = (filled(f"k.{k}+v.{v}+{WINDOW}", head_dim) for k, v in pairs)
    pair = [view.read(0, 200) for view in views(mixed)]
    assert torch.equal(pair[0], views(keys)[0].read(0, 200))
    assert torch.equal(pair[1], views(values)[1].read(0, 200))
    assert mixed.nbytes == keys.layers[0].key_store.nbytes + values.layers[0].value_store.nbytes
    query = torch.randn(1, 4, 1, head_dim)
    expected = reference(query.double(), *views(mixed), AttentionOptions(causal=True))
    assert (attend(query, *views(mixed), AttentionOptions(causal=True)) - expected).abs().max() < 1e-5


def test_one_scale_for_all_heads_is_never_the_default_and_worse_where_heads_differ() -> None:
    x = torch.randn(1, 8, 64, 64) * torch.tensor([100.0, *[1.0] * 7])[:, None, None]
    error = {}
    for text in ("int8-head", "int8-chunk+f64"):
        error[text] = (round_trip(parse_spec(text).key, x) - x)[:, 1:].square().mean().item()
    assert error["int8-chunk+f64"] > 1000 * error["int8-head"]
    sharings = {str(t.sharing) for spec in presets().values() for t in (spec.key, spec.value)}
    assert not any("chunk" in sharing for sharing in sharings)


def test_hot_key_channels_are_told_apart_and_flagged() -> None:
    """A model whose first key projection has large biases, as some real ones have: four bits with a scale per
    token lose it."""
    model, tokenizer = load_model("random-qwen2")
    bias = model.model.layers[0].self_attn.k_proj.bias
    bias[::32] += 30
    bias[1::32] -= 30
    formats = ["int4-head", "k.int4-channel@g16+v.int4-head", "int8-head", "int4-head+l0.fp32"]
    text = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
    result = evaluate(
        model, tokenizer, [f"{f}+{WINDOW}" for f in formats], contexts=[96], text=text, windows=2, score=48
    )
    kl = dict(zip(formats, (row["quality"]["kl_mean"] for row in result.rows), strict=True))
    bad = kl.pop("int4-head")
    assert all(bad > 3 * other for other in kl.values()) and kl["int8-head"] < bad / 30
    flags = [" ".join(row["quality"]["flags"]) for row in result.rows]
    assert "top-1 agreement" in flags[0] and "top-1" not in flags[2]
