"""Bytes of the cache: what is alive, what the closed form predicts, and what a token costs."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from default_specs import A_FEW, PRESETS
from runs import live_bytes, logits_in_calls, token_ids, with_attention

from quantkv import QuantizedCache, parse_spec, presets
from quantkv.models import random_model

LENGTHS = [1, 2, 3, 31, 32, 33, 66, 99, 100, 101, 129, 132, 161, 200, 256, 300, 383, 384, 500, 777]
HEADS, DIM = 2, 32
WAITING = "int4-head+r8+f16+s2+k8+q150"


def config(**settings: Any) -> Any:
    return random_model("random-llama", vocab_size=8, hidden_size=32, intermediate_size=8, **settings).config


def grow(cache: QuantizedCache, length: int, rows: int, dim: int = DIM) -> None:
    """Random keys and values up to `length` tokens in all layers."""
    new = length - cache.get_seq_length()
    for layer in range(len(cache.layers)):
        cache.update(torch.randn(rows, HEADS, new, dim), torch.randn(rows, HEADS, new, dim), layer)


@pytest.mark.parametrize("text", [*PRESETS, *A_FEW, WAITING])
def test_bytes_are_live_storages_and_the_closed_form(text: str) -> None:
    cache = QuantizedCache(config(), text)
    assert cache.nbytes == cache.predicted_nbytes() == live_bytes(cache) == 0
    for length in LENGTHS:
        grow(cache, length, rows=2)
        assert cache.nbytes == live_bytes(cache) == cache.predicted_nbytes(), length
        assert cache.exact_nbytes <= cache.used_nbytes <= cache.nbytes


@pytest.mark.parametrize("text", [*PRESETS, *A_FEW, WAITING])
def test_bytes_of_one_token_at_a_time_equal_those_of_one_call(text: str) -> None:
    steps, whole = QuantizedCache(config(), text), QuantizedCache(config(), text)
    for length in range(1, 200):
        grow(steps, length, rows=1)
    grow(whole, 199, rows=1)
    assert steps.nbytes == whole.nbytes == live_bytes(steps)


@pytest.mark.parametrize("text", [*A_FEW, "int8-head", "kivi-2", WAITING])
def test_bytes_of_padded_rows(text: str) -> None:
    """Rows that pack at different steps, some of them not yet begun."""
    cache = QuantizedCache(config(), text)
    cache.set_padding([0, 130, 7])
    for length in LENGTHS[-10:]:
        grow(cache, length, rows=3)
        assert cache.nbytes == live_bytes(cache) == cache.predicted_nbytes(), length


def test_bytes_by_hand() -> None:
    """int4-head, 2 layers, 2 rows, 2 heads of 32 channels in float32, 300 tokens.

    Exact: 4 sinks + 64 recent + 32 flush + 32 reserve tokens. Packed: 32 · floor((300 − 68) / 32) = 224,
    one page of 256: per head 256 · 16 bytes of codes and 256 · 4 of scale and zero.
    """
    cache = QuantizedCache(config(), "int4-head")
    grow(cache, 300, rows=2)
    exact, page = 2 * 32 * 4 * (4 + 64 + 32 + 32), 2 * 256 * (16 + 4)
    assert cache.nbytes == 2 * 2 * 2 * (exact + page)  # layers · (keys, values) · rows
    assert cache.exact_nbytes == 2 * 2 * 2 * exact
    assert cache.effective_bits == pytest.approx(8 * 2 * (exact + page) / (2 * 2 * 32 * 300))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_exact_tokens_are_billed_in_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    cache = QuantizedCache(config(), "int8-head")
    x = torch.randn(1, HEADS, 150, DIM).to(dtype)
    cache.update(x, x, 0)
    assert cache.exact_nbytes == 2 * HEADS * DIM * dtype.itemsize * (4 + 64 + 32 + 32)
    assert cache.nbytes == live_bytes(cache) == cache.predicted_nbytes()


@pytest.mark.parametrize("name", ["int8-head", "int4-head", "kivi-2", "fp16"])
def test_bits_approach_the_packed_rate(name: str) -> None:
    """A window that grew without bound, or a history held twice, would show here."""
    spec = presets()[name]
    packed = spec.bits_packed(head_dim=64, num_key_value_heads=HEADS, dtype=torch.float32)
    cache = QuantizedCache(config(head_dim=64), name)
    for length in (4000, 8000, 16000):
        grow(cache, length, rows=1, dim=64)
        exact = 8 * cache.exact_nbytes / cache.elements
        assert packed * 0.97 <= cache.effective_bits - exact <= packed * 1.13
    assert exact < 1.5


def test_nothing_else_stays_alive_after_running_a_model(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, "int4-head+r8+f16+s2+k8")
    for implementation in ("quantkv", "sdpa"):
        with_attention(tiny_llama, implementation)
        with torch.no_grad():
            logits_in_calls(tiny_llama, token_ids(2, 130), cache, [70, 9, *[1] * 51])
        gc.collect()
        assert cache.nbytes == live_bytes(cache) == cache.predicted_nbytes()


def test_long_prompt_is_not_held_exactly() -> None:
    """Right after a prefill the exact part is what it is for any other length."""
    short, long = (QuantizedCache(config(), "int4-head") for _ in range(2))
    grow(short, 200, rows=1)
    grow(long, 5000, rows=1)
    assert long.exact_nbytes == short.exact_nbytes
    assert live_bytes(long) < 5000 * 2 * 2 * HEADS * DIM * 4 / 4


def test_layers_of_different_formats_add_up() -> None:
    spec = parse_spec("int4-head").with_layers({0: "fp16"})
    mixed, raw, packed = (QuantizedCache(config(), s) for s in (spec, "fp16", "int4-head"))
    for cache in (mixed, raw, packed):
        grow(cache, 400, rows=1)
    assert mixed.nbytes == mixed.predicted_nbytes() == live_bytes(mixed) == (raw.nbytes + packed.nbytes) / 2


def test_bytes_after_reset_are_zero() -> None:
    cache = QuantizedCache(config(), "int4-head")
    grow(cache, 300, rows=1)
    cache.reset()
    assert cache.nbytes == live_bytes(cache) == 0 and cache.get_seq_length() == 0


def test_bytes_of_forks_and_selected_rows_count_each_storage_once() -> None:
    cache = QuantizedCache(config(), "int8-head+r8+f32+s2+k0")
    grow(cache, 600, rows=1)
    cache.batch_repeat_interleave(4)
    assert cache.nbytes == live_bytes(cache)
    grow(cache, 700, rows=4)
    assert cache.nbytes == live_bytes(cache)
