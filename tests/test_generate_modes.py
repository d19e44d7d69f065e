"""Every mode of generating: equal tokens with the lossless codec, and every promise kept by every format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked_cache import CheckedCache
from default_specs import A_FEW, PRESETS, SMALL
from runs import plain_cache, with_attention
from support import modes
from support.architectures import tiny_model
from support.modes import MODES, compare_modes

from quantkv import QuantizedCache
from quantkv.models import random_model

SPEC = "exact+r8+f8+s2+k8+sliding"
MODELS = ("random-llama", "random-qwen2", "random-gemma3", "random-mistral:sliding_window=24")
TINY = {"hidden_size": 64, "intermediate_size": 64}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_mode_gives_the_tokens_of_a_dynamic_cache(name: str, mode: str) -> None:
    model = random_model(name)
    with torch.no_grad():
        expected = MODES[mode](with_attention(model, "sdpa"), plain_cache(model))
        for implementation in ("sdpa", "quantkv"):
            cache = QuantizedCache(model.config, SPEC)
            tokens = MODES[mode](with_attention(model, implementation), cache)
            assert torch.equal(tokens, expected), implementation
            assert cache.num_quantized_layers == len(cache.layers)


@pytest.mark.slow
def test_the_comparison_sees_a_lossy_cache_in_most_modes() -> None:
    seen = compare_modes(tiny_model("llama"), "int2-head+r8+f16+s2+k8")
    assert set(seen.unequal.values()) == {"other tokens"} and not seen.impossible
    assert len(seen.unequal) >= len(MODES) - 2


def test_the_comparison_sees_a_lossy_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("greedy", "beams", "padded", "chunked")
    monkeypatch.setattr(modes, "MODES", {name: MODES[name] for name in few})
    seen = compare_modes(tiny_model("llama"), "int2-head+r8+f16+s2+k8")
    assert seen.unequal == dict.fromkeys(few, "other tokens") and not seen.impossible


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda store: store.pages.pool.slabs[0].bitwise_not_(), "a packed token has changed"),
        (lambda store: store.sinks.buffer.add_(1), "a sink is not exact"),
        (lambda store: store.ring.buffer.add_(1), "a recent token is not exact"),
    ],
)
def test_the_checked_cache_sees_broken_promises(tiny_llama: Any, spoil: Any, message: str) -> None:
    cache = CheckedCache(tiny_llama.config, "int8-head@sym+r8+f16+s2+k8")
    x = torch.randn(2, 2, 60, 32)
    cache.update(x, x, 0)
    spoil(cache.layers[0].value_store)
    with pytest.raises(AssertionError, match=message):
        cache.update(x[:, :, :1], x[:, :, :1], 0)


def check_all_modes(model: Any, text: str) -> None:
    model = with_attention(model, "quantkv")
    for mode in MODES.values():
        cache = CheckedCache(model.config, text)
        with torch.no_grad():
            mode(model, cache)
        assert sum(layer.key_store.packed(0) for layer in cache.quantized_layers)
        cache.check_at_the_end()


@pytest.mark.parametrize("text", SMALL)
def test_promises_hold_in_every_mode(text: str) -> None:
    layers = 2 if "+l" in text else 1
    check_all_modes(random_model("random-llama", num_hidden_layers=layers, **TINY), text)


@pytest.mark.parametrize("text", PRESETS)
def test_promises_of_presets_hold_in_every_mode(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their own windows: the prompt is longer than those."""
    monkeypatch.setattr(modes, "PROMPT", 160)
    check_all_modes(random_model("random-llama", num_hidden_layers=1, **TINY), text)


@pytest.mark.parametrize("text", A_FEW)
def test_promises_hold_in_every_mode_behind_a_sliding_window(text: str) -> None:
    model = random_model("random-mistral", num_hidden_layers=1, sliding_window=24, **TINY)
    check_all_modes(model, f"{text}+sliding")
