"""How a model's layers turn their keys (RoPE, Su et al. 2021), by architecture: which channels go together,
how many of them turn, in which layers, and by which frequencies.

No config says how channels are paired, so the architectures stand in tables, and what stands in none is
refused. A test runs each: one token at all positions has one key once it is turned back. Frequencies are
those of transformers' own functions at the model's original length: those of `dynamic` and `longrope` change
as a context grows, and what was turned back by one table must be turned again by the same. An attention
factor (yarn, longrope) scales keys and turns none of them, so it is no part of a `Rope`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from quantkv.codecs import Rope
from quantkv.errors import UnsupportedError


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


HALVES = _names(
    """
    afmoe apertus apertus1p5_text arcee aria_text bamba beam bitnet cwm diffllama doge dots1 exaone exaone4
    exaone_moe falcon falcon_h1 flex_olmo flint gemma gemma2 gemma3_text gemma3n_text gemma4_text
    gemma4_unified_text glm4_moe gpt_neox gpt_neox_japanese gpt_oss granite granite_swa granitemoe
    granitemoe_swa granitemoehybrid granitemoeshared hrm_text hy_v3 hyperclovax internlm3 iquestcoder jais2
    jetmoe kolibri1 laguna lara_mini lfm2 lfm2_moe lfm3 llama mellum mimo_v2_flash minimax_m2
    minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder moshi nanochat nemotron olmo
    olmo2 olmo3 olmo_hybrid olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next
    sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
    """
)
"""Architectures that pair channel `i` with the one half of the turned width further."""

INTERLEAVED = _names(
    "codegen cohere cohere2 cohere2_moe ernie4_5 ernie4_5_moe glm glm4 gptj helium llama4_text"
)
"""Architectures that pair neighbours."""

UNTURNED = _names(
    """
    bart bert bert-generation bigbird_pegasus biogpt blenderbot blenderbot-small bloom camembert data2vec-text
    electra ernie gpt2 gpt_bigcode gpt_neo jamba marian mbart megatron-bert mpt mvp nemotron_h opt pegasus
    plbart rembert roberta roc_bert trocr whisper xlm xlm-roberta xlm-roberta-xl
    """
)
"""Architectures whose positions are learned, a bias of the scores, or none: keys are not turned."""

BACKWARDS = frozenset({"nanochat"})
"""Architectures that turn the other way."""

PARTIAL = _names(
    """
    bamba glm glm4 glm4_moe gpt_neox gpt_neox_japanese laguna mimo_v2_flash minimax_m2
    minimax_m3_vl_text nemotron persimmon phi phi3 qwen3_next sarvam_moe stablelm
    """
)
"""Architectures that turn a part of the channels where their config says so; the plain RoPE of the others
turns all of them, whatever it says."""

REFUSED = dict.fromkeys(
    ("hunyuan_v1_dense", "hunyuan_v1_moe"), "it scales each channel after turning, by learned numbers"
) | dict.fromkeys(
    ("qwen3_5_text", "qwen3_5_moe_text"), "it counts positions along several axes (M-RoPE)"
)  # fmt: skip


def _listed(config: Any, layer: int) -> bool:
    return bool(config.no_rope_layers[layer])


def _sliding(config: Any, layer: int) -> bool:
    return config.layer_types[layer] == "sliding_attention"


def _windowed(config: Any, layer: int) -> bool:
    return _sliding(config, layer) and config.sliding_window is not None


def _windowed_or_first(config: Any, layer: int) -> bool:
    first = config.mlp_layer_types[layer] == "dense" and config.prefix_dense_sliding_window_pattern == 1
    return first or _windowed(config, layer)


def _sliding_if_any(config: Any, layer: int) -> bool:
    return config.sliding_window is None or _sliding(config, layer)


TURNS: dict[str, Callable[[Any, int], bool]] = {
    "smollm3": _listed, "llama4_text": _listed,
    "afmoe": _sliding, "cohere2": _windowed, "flint": _windowed, "cohere2_moe": _windowed_or_first,
    "exaone4": _sliding_if_any, "exaone_moe": _sliding_if_any, "kolibri1": _sliding_if_any,
    "falcon": lambda config, layer: not config.alibi,
    "granitemoehybrid": lambda config, layer: config.position_embedding_type == "rope",
}  # fmt: skip
"""Whether a layer turns its keys, where that differs between layers or configs."""


def layer_rope(config: Any, layer: int) -> Rope | None:
    """How a layer of a model with this config (of transformers) turns its keys; None where it does not.
    UnsupportedError where nobody knows, or where keys cannot be turned back."""
    config = config.get_text_config(decoder=True)
    kind = config.model_type
    if reason := _why_refused(config):
        raise UnsupportedError(f"how {kind} turns its keys cannot be undone: {reason}")
    if kind in UNTURNED or (kind in TURNS and not TURNS[kind](config, layer)):
        return None
    frequencies = _frequencies(config, layer)
    if frequencies is None:
        return None
    sign = -1.0 if kind in BACKWARDS else 1.0
    return Rope(tuple(sign * f for f in frequencies.tolist()), interleaved=kind in INTERLEAVED)


def known_rope(config: Any, layer: int) -> tuple[Rope | None, str]:
    """`layer_rope`, and instead of an error why there is none: what a `Place` holds."""
    try:
        return layer_rope(config, layer), ""
    except UnsupportedError as error:
        return None, str(error)


def _why_refused(config: Any) -> str:
    kind = config.model_type
    if getattr(config, "kv_lora_rank", None):
        return "it caches latents, and what is turned beside them (multi-head latent attention)"
    if "mrope_section" in (getattr(config, "rope_parameters", None) or {}):
        return "it counts positions along several axes (M-RoPE)"
    if kind in REFUSED:
        return REFUSED[kind]
    return (
        "" if kind in HALVES | INTERLEAVED | UNTURNED else "it is none of the architectures that were tried"
    )


def _frequencies(config: Any, layer: int) -> Tensor | None:
    """Radians per position of each pair, in float32 as the model has them; None where the layer has none."""
    if config.model_type in ("gptj", "codegen"):
        if config.rotary_dim is None:
            raise UnsupportedError(
                f"{config.model_type} turns more channels than a head has without rotary_dim"
            )
        return _plain(10000.0, config.rotary_dim)
    settings, layer_type = config.rope_parameters, None
    if (types := getattr(config, "layer_types", None)) and types[layer] in settings:
        layer_type = types[layer]
        settings = settings[layer_type]
        if settings is None:
            return None
    if (rope_type := settings["rope_type"]) != "default":
        return _scaled(config, rope_type, layer_type)
    share = settings.get("partial_rotary_factor", 1.0) if config.model_type in PARTIAL else 1.0
    return _plain(settings["rope_theta"], int(_head_dim(config, layer) * share))


def _scaled(config: Any, rope_type: str, layer_type: str | None) -> Tensor:
    """Of the original length, which the functions take where none is said."""
    if rope_type not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise UnsupportedError(f"{config.model_type} has rotary positions {rope_type!r}; known: {known}")
    by_type = {} if layer_type is None else {"layer_type": layer_type}
    return ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), **by_type)[0]


def _head_dim(config: Any, layer: int) -> int:
    if getattr(config, "is_heterogeneous", False):
        config = config.per_layer_config[layer]
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _plain(theta: float, width: int) -> Tensor:
    """`theta^(−2i / width)` of pair i."""
    return 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
