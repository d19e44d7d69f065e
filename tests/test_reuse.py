"""One prefix, many continuations: forks, files, conversion, late start. Continuations are bit-equal."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from default_specs import A_FEW, DEFAULT_SPECS, PRESETS
from runs import left_padded, live_bytes, logits_in_calls, plain_cache, token_ids, with_attention
from safetensors import safe_open
from safetensors.torch import save_file
from support.architectures import tiny_model
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

import quantkv.cache.saving
from quantkv import QuantizedCache, QuantKVError, UnsupportedError, cache_argument
from quantkv.models import random_model

PREFIX, REST = 90, 25

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture(scope="module")
def model() -> Any:
    model = random_model("random-llama", hidden_size=64, intermediate_size=64)
    return with_attention(model, "quantkv")


def filled(model: Any, spec: Any, ids: Tensor) -> QuantizedCache:
    cache = QuantizedCache(model.config, spec)
    logits_in_calls(model, ids, cache, [ids.shape[1]])
    return cache


def going_on(model: Any, cache: Any, seed: int = 4) -> Tensor:
    return logits_in_calls(model, token_ids(2, REST, seed=seed), cache, [1] * (REST - 5) + [5])


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_fork_continues_as_the_original_would(model: Any, text: str) -> None:
    cache = filled(model, text, token_ids(2, PREFIX))
    fork, other = cache.fork(), cache.fork()
    expected = going_on(model, cache)
    going_on(model, other, seed=5)
    assert torch.equal(going_on(model, fork), expected)


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_saved_cache_continues_as_the_original_would(model: Any, text: str, tmp_path: Path) -> None:
    cache = filled(model, text, token_ids(2, PREFIX))
    cache.save(tmp_path / "cache.safetensors")
    loaded = QuantizedCache.load(tmp_path / "cache.safetensors", model.config, text)
    assert torch.equal(going_on(model, loaded), going_on(model, cache))
    assert loaded.spec == cache.spec


def test_padding_and_dtype_survive_a_file(tmp_path: Path) -> None:
    model = with_attention(random_model("random-llama", dtype=torch.bfloat16), "quantkv")
    mask, ids = left_padded([0, 11], PREFIX + REST), token_ids(2, PREFIX + REST)
    cache = QuantizedCache(model.config, "int4-head+r8")
    logits_in_calls(model, ids[:, :PREFIX], cache, [PREFIX], mask)
    cache.save(tmp_path / "c")
    loaded = QuantizedCache.load(tmp_path / "c", model.config)
    rest = [logits_in_calls(model, ids[:, PREFIX:], c, [1] * REST, mask) for c in (cache, loaded)]
    assert torch.equal(*rest)
    assert rest[1].dtype == torch.bfloat16


def test_sixteen_forks_hold_the_prefix_once(model: Any) -> None:
    cache = filled(model, "int4-head", token_ids(1, 2048))
    packed, exact = cache.nbytes - cache.exact_nbytes, cache.exact_nbytes
    forks = [cache.fork() for _ in range(16)]
    assert live_bytes([cache, *forks]) == packed + 17 * exact
    logits_in_calls(model, token_ids(1, 40), forks[0], [40])
    assert live_bytes([cache, *forks]) < 2 * packed + 17 * exact


def test_pages_of_dropped_forks_are_used_again(model: Any) -> None:
    cache = filled(model, "int4-head", token_ids(2, 600))
    for seed in range(8):
        going_on(model, cache.fork(), seed)
        gc.collect()
    held = cache.nbytes
    going_on(model, cache.fork())
    assert cache.nbytes == held


def test_beam_reorder_moves_tables_and_exact_tokens_only(model: Any) -> None:
    cache = QuantizedCache(model.config, "int4-head")
    for layer in cache.layers:
        layer.update(torch.randn(8, 2, 4096, 32), torch.randn(8, 2, 4096, 32))
    stores = [store for layer in cache.quantized_layers for store in layer.stores]
    slabs = [slab for store in stores for slab in store.pages.pool.slabs]
    before = [(slab.data_ptr(), slab._version) for slab in slabs]
    exact = cache.exact_nbytes
    cache.reorder_cache(torch.tensor([3, 3, 0, 1, 7, 7, 7, 2]))
    after = [slab for store in stores for slab in store.pages.pool.slabs]
    assert [(slab.data_ptr(), slab._version) for slab in after] == before  # no packed byte was written
    assert cache.exact_nbytes == exact < cache.nbytes / 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 128}, "hidden_size 64 in the file, 128 in the model"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 2 in the file, 3 in the model"),
    ],
)
def test_another_model_is_refused(model: Any, tmp_path: Path, change: dict, message: str) -> None:
    filled(model, "int4-head", token_ids(1, 50)).save(tmp_path / "c")
    config = random_model("random-llama", **{"hidden_size": 64, "intermediate_size": 64, **change}).config
    with pytest.raises(QuantKVError, match="belongs to another model") as error:
        QuantizedCache.load(tmp_path / "c", config)
    assert message in str(error.value)


def test_another_spec_version_or_file_is_refused(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(model, "int4-head", token_ids(1, 50)).save(tmp_path / "c")
    with pytest.raises(QuantKVError, match="holds int4-head, not int8-head"):
        QuantizedCache.load(tmp_path / "c", model.config, "int8-head")
    monkeypatch.setattr(quantkv.cache.saving, "FORMAT_VERSION", 99)
    with pytest.raises(QuantKVError, match="format version 4, this is version 99"):
        QuantizedCache.load(tmp_path / "c", model.config)
    (tmp_path / "text").write_text("no cache")
    for missing in (tmp_path / "text", tmp_path / "nowhere"):
        with pytest.raises(QuantKVError, match="cannot read a cache from"):
            QuantizedCache.load(missing, model.config)


@pytest.mark.parametrize("text", A_FEW)
def test_conversion_from_and_to_a_plain_cache(model: Any, text: str) -> None:
    ids = token_ids(2, PREFIX)
    plain = plain_cache(model)
    logits_in_calls(model, ids, plain, [PREFIX])
    packed = QuantizedCache.from_cache(plain, model.config, text)
    same = filled(model, text, ids)
    back = packed.to_dynamic()
    assert torch.equal(going_on(model, packed), going_on(model, same))
    assert back.get_seq_length() == PREFIX
    lossless = QuantizedCache.from_cache(plain, model.config, "exact").to_dynamic()
    assert all(torch.equal(a.keys, b.keys) for a, b in zip(lossless.layers, plain.layers))


def test_truncate_keeps_the_first_tokens(model: Any) -> None:
    ids = token_ids(2, PREFIX)
    cache, never = filled(model, "int4-head+r8+f16", ids), filled(model, "int4-head+r8+f16", ids)
    logits_in_calls(model, token_ids(2, 30, seed=8), cache, [30])
    cache.truncate(PREFIX)
    assert torch.equal(going_on(model, cache), going_on(model, never))
    for wrong in (-1, cache.get_seq_length() + 1):
        with pytest.raises(QuantKVError, match="cannot keep"):
            cache.truncate(wrong)


@pytest.mark.parametrize("text", PRESETS)
def test_quantize_after_is_exact_below_and_the_plain_format_above(model: Any, text: str) -> None:
    ids, late = token_ids(2, 200), f"{text}+q120"
    exact = logits_in_calls(model, ids, QuantizedCache(model.config, "exact"), [60] + [1] * 140)
    cache = QuantizedCache(model.config, late)
    logits = logits_in_calls(model, ids[:, :110], cache, [60] + [1] * 50)
    torch.testing.assert_close(logits, exact[:, :110], atol=1e-4, rtol=0)
    assert cache.describe()["packed_keys"].sum() == 0
    assert cache.nbytes == cache.predicted_nbytes()
    logits_in_calls(model, ids[:, 110:], cache, [1] * 90)
    plain = filled(model, text, token_ids(2, 200))
    assert cache.describe()["packed_keys"].tolist() == plain.describe()["packed_keys"].tolist()
    assert cache.nbytes == cache.predicted_nbytes() == plain.nbytes


@pytest.mark.parametrize("text", ["int4-head+r8", "int4-head+r8+k8+sliding"])
def test_layers_with_a_sliding_window_are_saved_and_forked_too(text: str, tmp_path: Path) -> None:
    model = with_attention(random_model("random-gemma3"), "quantkv")
    cache = filled(model, text, token_ids(2, PREFIX))
    cache.save(tmp_path / "c")
    loaded, fork = QuantizedCache.load(tmp_path / "c", model.config), cache.fork()
    expected = going_on(model, cache)
    assert torch.equal(going_on(model, loaded), expected)
    assert torch.equal(going_on(model, fork), expected)


@pytest.mark.parametrize("family", ["jamba", "qwen3_next", "lfm2_moe", "gemma4_text"])
def test_running_states_and_shared_keys_are_saved_too(family: str, tmp_path: Path) -> None:
    model, ids, logits = tiny_model(family), token_ids(2, 40, 100) + 3, []
    cache = QuantizedCache(model.config, "int4-head+r8+f4")
    model(input_ids=ids[:, :33], use_cache=True, **{cache_argument(model): cache})
    cache.save(tmp_path / "c")
    for c in (cache, QuantizedCache.load(tmp_path / "c", model.config)):
        calls = ids[:, 33:].split((1, 6), 1)
        logits.append(
            [model(input_ids=x, use_cache=True, **{cache_argument(model): c}).logits for x in calls]
        )
    for a, b in zip(*logits, strict=True):
        assert torch.equal(a, b)


def test_what_describe_tells_survives_a_file(model: Any, tmp_path: Path) -> None:
    cache = filled(model, "int4-head+r8+f16+k8", token_ids(2, PREFIX))
    cache.truncate(PREFIX // 2)
    cache.save(tmp_path / "c")
    table = QuantizedCache.load(tmp_path / "c", model.config).describe()
    assert table["deep_rollbacks"].min() > 0
    told = [name for name in table if name != "materialized"]  # how often this process decoded it
    assert table[told].equals(cache.describe()[told])


def test_a_state_that_no_file_can_hold_is_refused(model: Any, tmp_path: Path) -> None:
    gemma = random_model("random-gemma3")
    cache = QuantizedCache(gemma.config, "int4-head")
    cache.layers[0].owner = object()
    with pytest.raises(UnsupportedError, match="layer 0 holds a object, which cannot be saved"):
        cache.save(tmp_path / "c")


def test_a_file_without_a_tensor_is_refused(model: Any, tmp_path: Path) -> None:
    filled(model, "int4-head", token_ids(1, 50)).save(tmp_path / "c")
    with safe_open(tmp_path / "c", "pt") as file:
        facts, names = file.metadata(), sorted(file.keys())
        save_file({name: file.get_tensor(name) for name in names[1:]}, tmp_path / "d", metadata=facts)
    with pytest.raises(QuantKVError, match=f"damaged: KeyError: '{names[0].partition('.')[2]}'"):
        QuantizedCache.load(tmp_path / "d", model.config)


@pytest.mark.parametrize("calls", [[200], [150, *[1] * 50]])
@pytest.mark.parametrize(
    "text", ["exact+sliding", "exact+r8+f4+k8+sliding", "exact+r3+f32+k0+sliding", "exact"]
)
def test_a_window_that_has_moved_is_packed_with_its_position(text: str, calls: list[int]) -> None:
    """The logits of what follows are those that the plain cache gives."""
    model = with_attention(random_model("random-gemma3", sliding_window=16), "sdpa")
    plain = plain_cache(model)
    logits_in_calls(model, token_ids(2, 200), plain, calls)
    packed = QuantizedCache.from_cache(plain, model.config, text)
    assert [layer.get_seq_length() for layer in packed.layers] == [200, 200]
    for size in (1, 1, 5, 40, 1):
        more = token_ids(2, size, seed=size)
        expected = logits_in_calls(model, more, plain, [size])
        assert torch.equal(logits_in_calls(model, more, packed, [size]), expected)
    assert [layer.get_mask_sizes(3) for layer in packed.layers] == [
        layer.get_mask_sizes(3) for layer in plain.layers
    ]


@pytest.mark.parametrize("text", ["int4-head+r8+f4+sliding", "k.int2-channel@g32+v.int4-head+r8+f32+sliding"])
def test_a_window_that_has_moved_is_packed_near_what_it_was(text: str) -> None:
    """Tokens that are gone share a scale with the first ones that are held, and must not widen it."""
    model = random_model("random-gemma3", sliding_window=48)
    plain = plain_cache(model)
    logits_in_calls(model, token_ids(1, 200), plain, [200])
    packed = QuantizedCache.from_cache(plain, model.config, text)
    stepped = filled(model, text, token_ids(1, 200))
    for part in ("keys", "values"):
        held = getattr(plain.layers[0], part)
        errors = [(getattr(c.layers[0], part).materialize() - held).norm() for c in (packed, stepped)]
        assert errors[0] <= 1.05 * errors[1] and errors[1] > 0


def test_a_plain_cache_without_config_is_cut_to_its_windows(model: Any) -> None:
    gemma = with_attention(random_model("random-gemma3", sliding_window=16), "sdpa")
    whole, plain = DynamicCache(), plain_cache(gemma)
    for cache in (whole, plain):
        logits_in_calls(gemma, token_ids(1, 60), cache, [60])
    for text in ("exact", "exact+sliding"):
        back = QuantizedCache.from_cache(whole, gemma.config, text).to_dynamic()
        for a, b in zip(back.layers, plain.layers, strict=True):
            assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)
            assert a.get_seq_length() == b.get_seq_length() == 60


@pytest.mark.parametrize("cache", [DynamicCache(), EncoderDecoderCache(DynamicCache(), DynamicCache())])
def test_other_caches_are_not_taken_for_plain_ones(model: Any, cache: Any) -> None:
    with pytest.raises(QuantKVError, match="from_cache takes a DynamicCache of 2 layers"):
        QuantizedCache.from_cache(cache, model.config, "int4-head")
