"""How models turn their keys: one token at all positions has one key, once it is turned back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from families import family_model
from support.architectures import tiny_model
from torch import Tensor
from transformers import DynamicCache, LlavaConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quantkv import UnsupportedError, cache_argument
from quantkv.cache.rotary import HALVES, INTERLEAVED, PARTIAL, TURNS, UNTURNED, known_rope, layer_rope
from quantkv.codecs import Place, Rope, Tokens
from quantkv.codecs.steps import Turn
from quantkv.quiet import quiet

LENGTH = 12
NEAR = 1e-9
"""Of the largest number of the keys."""
ROUNDED = 1e-6
"""Where a model computes keys in float32 after turning them, or its table of sines."""
IN_FLOAT32 = ("nanochat", "llama4_text", "gptj", "codegen", "minimax_m3_vl_text")
QUICK = ("llama", "gptj", "glm", "cohere2", "gemma3_text", "gpt2", "nanochat")
SETTINGS: dict[str, dict[str, Any]] = {"gemma4_unified_text": {"per_layer_config": {1: {"head_dim": 32}}}}
SCALED = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {
        "short_factor": [1.0 + i / 4 for i in range(8)], "long_factor": [4.0] * 8, "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}  # fmt: skip


def cached_keys(model: Any) -> dict[int, Tensor]:
    """Keys `[1, H, LENGTH, D]` of each attention layer, which is given the same at all positions."""
    handles = [
        module.register_forward_pre_hook(_first_everywhere, with_kwargs=True)
        for module in model.modules()
        if "Attention" in type(module).__name__
        and (hasattr(module, "layer_idx") or hasattr(module, "layer_id"))
    ]
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), quiet(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)  # angles and sines, which models take in float32
        model(input_ids=torch.full((1, LENGTH), 7), use_cache=True, **{cache_argument(model): cache})
    for handle in handles:
        handle.remove()
    return {i: layer.keys for i, layer in enumerate(cache.layers) if getattr(layer, "keys", None) is not None}


def _first_everywhere(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if given:
        return (given[0][:, :1].expand_as(given[0]), *given[1:]), named
    hidden = named["hidden_states"]
    return given, named | {"hidden_states": hidden[:, :1].expand_as(hidden)}


def unlike(keys: Tensor) -> float:
    """How far keys differ between positions."""
    return float((keys - keys[:, :, :1]).abs().max() / keys.abs().max())


def turned_back(keys: Tensor, rope: Rope) -> Tensor:
    place = Place("key", keys.shape[1], keys.shape[3], keys.dtype)
    return Turn(rope).apply(keys, Tokens(place, (0,) * len(keys)), {})


def check_layers(model: Any, near: float = NEAR) -> list[Rope | None]:
    """Each layer's keys become equal by its own `Rope`, and by no other; returns what the layers have."""
    ropes = []
    for layer, keys in cached_keys(model).items():
        rope = layer_rope(model.config, layer)
        ropes.append(rope)
        if rope is None:
            assert unlike(keys) <= near
            continue
        other = Rope(rope.frequencies, not rope.interleaved)
        faster = Rope(tuple(1.5 * f for f in rope.frequencies), rope.interleaved)
        assert unlike(turned_back(keys, rope)) <= near
        assert min(map(unlike, (keys, turned_back(keys, other), turned_back(keys, faster)))) > 1e-3
    assert ropes
    return ropes


def check_family(family: str) -> None:
    model = family_model(family, **SETTINGS.get(family, {}))
    ropes = check_layers(model, ROUNDED if family in IN_FLOAT32 else NEAR)
    assert all(rope is None for rope in ropes) == (family in UNTURNED or family == "granitemoehybrid")


@pytest.mark.long("the first to use a family imports it")
@pytest.mark.parametrize("family", QUICK)
def test_keys_are_turned_as_the_table_says(family: str) -> None:
    check_family(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted((HALVES | INTERLEAVED | UNTURNED) - set(QUICK)))
def test_keys_of_all_families_are_turned_as_the_table_says(family: str) -> None:
    check_family(family)


def test_every_table_names_families_that_are_tried() -> None:
    families = HALVES | INTERLEAVED | UNTURNED
    assert families <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert PARTIAL | set(TURNS) <= HALVES | INTERLEAVED
    assert not (HALVES & INTERLEAVED or HALVES & UNTURNED or INTERLEAVED & UNTURNED)


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_frequencies_are_those_of_the_model(kind: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 10000.0} | SCALED[kind]
    (rope, _) = check_layers(family_model("llama", rope_parameters=parameters))
    plain = layer_rope(tiny_model("llama").config, 0)
    assert rope and plain and (rope.frequencies == plain.frequencies) == (kind == "dynamic")


def _parts() -> list[str]:
    """Families that have such settings, and run with them."""
    return sorted((HALVES | INTERLEAVED) - {"gptj", "codegen", "granitemoehybrid", "mellum", "solar_open"})


@pytest.mark.slow
@pytest.mark.parametrize("family", _parts())
def test_which_families_turn_a_part_where_their_config_says_so(family: str) -> None:
    plain = tiny_model(family).config
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    parameters = plain.rope_parameters
    by_type = {name: half for name, own in parameters.items() if isinstance(own, dict)}
    settings = SETTINGS.get(family, {}) | {"rope_parameters": parameters | (by_type or half)}
    model = family_model(family, **settings)
    ropes = check_layers(model, ROUNDED if family in IN_FLOAT32 else NEAR)
    keys = cached_keys(model)
    for (layer, x), rope in zip(keys.items(), ropes, strict=True):
        width = x.shape[-1] // 2 if family in PARTIAL else x.shape[-1]
        assert rope is None or 2 * len(rope.frequencies) == width, layer


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("cohere2", {"sliding_attention": True, "full_attention": False}),
        ("gemma3_text", {"sliding_attention": True, "full_attention": True}),
    ],
)
def test_layers_of_two_kinds(family: str, kinds: dict[str, bool]) -> None:
    config = tiny_model(family).config
    ropes = {kind: layer_rope(config, layer) for layer, kind in enumerate(config.layer_types)}
    assert {kind: rope is not None for kind, rope in ropes.items()} == kinds
    assert len(set(ropes.values())) == 2


def test_layers_that_a_config_lists() -> None:
    first, second = check_layers(family_model("smollm3", no_rope_layers=[1, 0]))
    assert first is not None and second is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings", "turned"),
    [
        ("granitemoehybrid", {"position_embedding_type": "rope"}, [True]),
        ("falcon", {"alibi": True}, [False, False]),
        ("exaone4", {"layer_types": ["full_attention"] * 2, "sliding_window": None}, [True, True]),
        ("exaone4", {"layer_types": ["full_attention", "sliding_attention"]}, [False, True]),
        ("cohere2", {"layer_types": ["full_attention", "sliding_attention"]}, [False, True]),
        ("afmoe", {"layer_types": ["full_attention", "sliding_attention"]}, [False, True]),
        ("llama4_text", {"no_rope_layers": [0, 1]}, [False, True]),
    ],
)
def test_layers_whose_config_says_so(family: str, settings: dict[str, Any], turned: list[bool]) -> None:
    near = ROUNDED if family in IN_FLOAT32 else NEAR
    assert [rope is not None for rope in check_layers(family_model(family, **settings), near)] == turned


def test_frequencies_of_the_original_length() -> None:
    """`dynamic` is plain RoPE there, and `longrope` divides by its short factors: by hand, 10000^(−2i/16)."""
    plain = [10000.0 ** (-i / 8) for i in range(8)]
    for kind, factors in (("dynamic", [1.0] * 8), ("longrope", SCALED["longrope"]["short_factor"])):
        parameters = {"rope_type": kind, "rope_theta": 10000.0} | copy.deepcopy(SCALED[kind])
        rope = layer_rope(tiny_model("llama", rope_parameters=parameters).config, 0)
        assert rope is not None
        assert rope.frequencies == pytest.approx(
            [f / by for f, by in zip(plain, factors, strict=True)], rel=1e-6
        )


def test_what_is_unknown_is_said() -> None:
    rope, why = known_rope(PreTrainedConfig(model_type="new"), 0)
    assert rope is None and "how new turns its keys" in why and "none of the architectures" in why
    rope, why = known_rope(tiny_model("llama").config, 0)
    assert rope is not None and not why


REFUSED = {
    "hunyuan_v1_dense": "by learned numbers",
    "deepseek_v3": "latents",
    "qwen3_5_text": "M-RoPE",
    "roformer": "none of the architectures that were tried",
}


@pytest.mark.parametrize("family", REFUSED)
def test_refusals_name_the_architecture(family: str) -> None:
    config = CONFIG_MAPPING[family]()
    with pytest.raises(UnsupportedError, match=f"how {family} turns its keys .*{REFUSED[family]}"):
        layer_rope(config, 0)


def test_positions_along_several_axes_are_refused() -> None:
    config = tiny_model("llama").config
    config.rope_parameters["mrope_section"] = [2, 3, 3]
    with pytest.raises(UnsupportedError, match=r"how llama turns its keys .*M-RoPE"):
        layer_rope(config, 0)


def test_unknown_kinds_are_refused_with_those_that_are_known() -> None:
    config = tiny_model("llama").config
    config.rope_parameters["rope_type"] = "axial"
    with pytest.raises(UnsupportedError, match=r"'axial'; known: default, .*yarn"):
        layer_rope(config, 0)


def test_a_model_of_images_has_the_rope_of_its_text_model() -> None:
    config = LlavaConfig()
    assert layer_rope(config, 0) == layer_rope(config.text_config, 0) is not None
