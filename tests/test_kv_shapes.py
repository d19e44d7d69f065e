"""Keys and values of different widths: whether a format fits is decided for each of them, when it is made."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from runs import live_bytes, logits_in_calls, plain_cache, token_ids, with_attention
from support import architectures
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quantkv import QuantizedCache, QuantKVError, parse_spec
from quantkv.cache.kv_shapes import kv_shapes
from quantkv.planner import plan
from quantkv.planner.probe import probe
from quantkv.quiet import quiet
from quantkv.sweep.fitting import fit

WINDOW = "+r8+f8+s2+k8"
PAIRS = [(48, 64), (64, 48), (32, 64), (64, 32), (64, 64)]
KEYS, VALUES = (f"{which}.int4-token@g{{}}" for which in "kv")


@cache
def uneven(keys: int, values: int, family: str = "mimo_v2_flash") -> Any:
    """A model with keys and values of these widths; latent attention caches its latents and rotary parts."""
    config = CONFIG_MAPPING[family]()
    widths = {"head_dim": keys, "v_head_dim": values, "partial_rotary_factor": 0.5}
    if hasattr(config, "kv_lora_rank"):
        widths = {"kv_lora_rank": keys, "qk_rope_head_dim": values, "head_dim": values}
        widths |= {"num_key_value_heads": 4, "qk_nope_head_dim": 24, "v_head_dim": 24}
    own = architectures._OWN.get(family, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(architectures._OWN, family, own | widths)
        patch.setitem(architectures._SMALL, "qk_rope_head_dim", values)
        return with_attention(architectures.tiny_model(family), "quantkv")


FITS = [
    # groups of key and value channels, whether they divide (keys, values)
    (f"{KEYS.format(k)}+{VALUES.format(v)}{WINDOW}+sliding", pair, pair[0] % k == 0 and pair[1] % v == 0)
    for pair in PAIRS
    for k, v in [(48, 64), (64, 48), (64, 64), (16, 16), (32, 16), (16, 32)]
]


@pytest.mark.parametrize("family", ["mimo_v2_flash", "deepseek_v3"])
@pytest.mark.parametrize(("spec", "pair", "fits"), FITS)
def test_each_width_is_held_against_its_own_groups(
    spec: str, pair: tuple[int, int], fits: bool, family: str
) -> None:
    model = uneven(*pair, family)
    if not fits:
        with pytest.raises(QuantKVError, match=r"^(keys: |values: )?a group of .* does not divide"):
            QuantizedCache(model.config, spec)
        assert fit(model.config, parse_spec(spec)).packed == 0
        return
    cache, ids = QuantizedCache(model.config, spec), token_ids(2, 60, vocab=128)
    with torch.no_grad():
        logits_in_calls(model, ids, cache, [40, *[1] * 20])
    widths = [(layer.key_store.head_dim, layer.value_store.head_dim) for layer in cache.quantized_layers]  # type: ignore[union-attr]
    assert widths == [pair] * 2
    assert cache.nbytes == live_bytes(cache) == cache.predicted_nbytes()


@pytest.mark.parametrize("family", ["mimo_v2_flash", "deepseek_v3"])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_lossless_format_equals_a_plain_cache(pair: tuple[int, int], family: str) -> None:
    model, ids = uneven(*pair, family), token_ids(2, 60, vocab=128)
    caches = plain_cache(model), QuantizedCache(model.config, f"exact{WINDOW}+sliding")
    with torch.no_grad():
        plain, packed = (logits_in_calls(model, ids, c, [40, *[1] * 20]) for c in caches)
    assert torch.allclose(plain, packed, atol=1e-4 * plain.abs().max().item())


@pytest.mark.parametrize("family", ["mimo_v2_flash", "deepseek_v3"])
def test_the_planner_knows_both_widths(family: str) -> None:
    model = uneven(64, 48, family)
    formats = [f"k.int4-token@g64+v.int4-token@g{group}{WINDOW}+sliding" for group in (48, 64)]
    _, fits, other = plan(model.config, formats, context=200).rows
    cache = QuantizedCache(model.config, formats[0])
    with torch.no_grad():
        logits_in_calls(model, token_ids(1, 200, vocab=128), cache, [100, 100])
    assert fits.bytes_per_sequence == cache.nbytes
    assert "values: a group of 64 channels does not divide head_dim 48" in other.why


def test_the_tensor_at_fault_is_named() -> None:
    with pytest.raises(QuantKVError, match=r"^values: a group of 32 channels does not divide head_dim 48"):
        QuantizedCache(uneven(64, 48).config, "int4-token@g32")


@pytest.mark.slow
def test_configurations_are_read_as_models_cache() -> None:
    """Over all families: the stated widths are those that the model's own code caches, or none is stated."""
    checked = 0
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            with quiet():
                config = architectures.tiny_model(family).config
                layers = probe(config, torch.float32).layers
        except Exception:  # no causal model of this family can be made, or run, without data
            continue
        for index, layer in enumerate(layers):
            if layer.key is None or layer.value is None or not layer.kind.startswith("Dynamic"):
                continue
            stated = kv_shapes(config, index)
            assert stated is None or (stated[0][1], stated[1][1]) == (layer.key.width, layer.value.width), (
                family
            )
            checked += stated is not None
    assert checked > 150
