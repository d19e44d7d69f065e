"""What a model's layers cache, or which layer's they read, as far as its configuration tells, and whether a
format can hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from quantkv.cache.layer_shapes import model_without_data, shapes_without_data
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.spec.specs import CacheSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Shape = tuple[int, int]
"""Heads and their width."""
_LATENT: dict[str, list[tuple[Shape, Shape] | None]] = {}
"""What models with latent attention were seen to cache, by their configuration."""


def check_fits(spec: CacheSpec, config: PreTrainedConfig, layer: int) -> None:
    """Raise QuantKVError where a layer cannot hold the spec, as far as a configuration tells."""
    shapes = kv_shapes(config, layer)
    if shapes is None and "token" in (spec.key.sharing, spec.value.sharing):
        shapes = _latent_shapes(config, layer)
    if shapes is None:
        return
    for half, shape in zip(spec.halves, shapes, strict=True):
        try:
            half.layout(*shape, torch.float32)
        except QuantKVError as error:
            if shapes[0] == shapes[1]:
                raise
            raise QuantKVError(f"{half.name}: {error}") from error


def kv_shapes(config: PreTrainedConfig, layer: int) -> tuple[Shape, Shape] | None:
    """Heads and widths of a layer's keys and of its values as the text config states them, None where it has
    no such numbers or caches something else."""
    text = _text_config(config, layer)
    heads = _first(text, "decoder_attention_heads", "num_attention_heads")
    if not isinstance(heads, int) or getattr(text, "kv_lora_rank", None):
        return None
    width = _first(text, "head_dim", "dim_head") or text.hidden_size // heads
    kv_heads = _first(text, "num_key_value_heads") or heads
    return (kv_heads, width), (kv_heads, _first(text, "v_head_dim") or width)


def _first(text: Any, *names: str) -> Any:
    """The first of a config's entries that is there and set."""
    return next((value for name in names if (value := getattr(text, name, None))), None)


def _text_config(config: PreTrainedConfig, layer: int) -> Any:
    text = config.get_text_config(decoder=True)
    return text.per_layer_config[layer] if getattr(text, "is_heterogeneous", False) else text


def _latent_shapes(config: PreTrainedConfig, layer: int) -> tuple[Shape, Shape] | None:
    """What latent attention caches, which releases of transformers change: read off a model, once."""
    if not getattr(_text_config(config, layer), "kv_lora_rank", None):
        return None
    name = config.to_json_string()
    if name not in _LATENT:
        try:
            layers = shapes_without_data(model_without_data(config, torch.float32))
        except UnsupportedError:
            layers = []
        pairs = [(each.key, each.value) for each in layers]
        _LATENT[name] = [((k.heads, k.width), (v.heads, v.width)) if k and v else None for k, v in pairs]
    return _LATENT[name][layer] if layer < len(_LATENT[name]) else None


def donor(config: PreTrainedConfig, layer: int) -> int | None:
    """The layer whose keys and values a layer reads; None where the config names none."""
    text = config.get_text_config(decoder=True)
    modes = getattr(text, "kv_sharing_modes", None)
    if modes is None or modes[layer] != "reuse":
        return None
    sources = getattr(text, "kv_source_layers", None)
    if sources is not None:
        return int(sources[layer])
    kinds = text.layer_types
    return max((i for i in range(layer) if modes[i] == "store" and kinds[i] == kinds[layer]), default=None)
