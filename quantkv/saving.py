"""Saving a cache to one safetensors file and loading it again, with everything checked that must agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from quantkv.cache import QuantizedCache
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.layer import QuantizedLayer
from quantkv.spec import CacheSpec
from quantkv.spec_text import parse_spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FORMAT_VERSION = 2
_PASSING = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "_attn_implementation",
    "use_cache",
)
"""Config entries that say nothing about which keys and values a model computes."""


def save_cache(cache: QuantizedCache, path: Path) -> None:
    """Packed pages, exact tokens and tables of every layer. Layers that are not quantized are saved as they
    are."""
    tensors: dict[str, Tensor] = {}
    layers = []
    for index, layer in enumerate(cache.layers):
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            layers.append(_save_plain(index, layer, tensors))
            continue
        if not isinstance(layer, QuantizedLayer):
            raise UnsupportedError(
                f"layer {index}, a {type(layer).__name__}, has a state that cannot be saved"
            )
        numbers = {}
        for name, store in zip(("key", "value"), layer.stores, strict=False):
            parts, numbers[name] = store.state()
            tensors |= {f"{index}.{name}.{part}": x.contiguous().clone() for part, x in parts.items()}
        layers.append(numbers)
    about = {
        "format": FORMAT_VERSION,
        "spec": str(cache.spec),
        "prefill": cache.prefill,
        "model": model_facts(cache.config),
        "layers": layers,
    }
    try:
        save_file(tensors, path, metadata={"quantkv": json.dumps(about)})
    except (OSError, SafetensorError) as error:
        raise QuantKVError(f"cannot write a cache to {path}: {error}") from error


def load_cache(path: Path, config: PreTrainedConfig, spec: str | CacheSpec | None = None) -> QuantizedCache:
    """The saved cache, for the model that `config` describes. Raises QuantKVError naming both sides of any
    disagreement."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("quantkv", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise QuantKVError(f"cannot read a cache from {path}: {error}") from error
    _check(path, about, config, spec)
    cache = QuantizedCache(config, about["spec"], prefill=about["prefill"])
    for index, (layer, numbers) in enumerate(zip(cache.layers, about["layers"], strict=True)):
        if numbers and isinstance(layer, QuantizedLayer):
            parts = {
                name: {part: tensors[f"{index}.{name}.{part}"] for part in ("pages", "ring", "sinks")}
                for name in ("key", "value")
            }
            layer.restore(parts, numbers)
        elif numbers:
            _load_plain(layer, tensors[f"{index}.keys"], tensors[f"{index}.values"], numbers)
    return cache


def _save_plain(index: int, layer: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Exact keys and values as they are; an empty layer has nothing to save."""
    if not layer.get_seq_length():
        return {}
    tensors |= {
        f"{index}.keys": layer.keys.contiguous().clone(),
        f"{index}.values": layer.values.contiguous().clone(),
    }
    return {"length": int(layer.get_seq_length())}


def _load_plain(layer: Any, keys: Tensor, values: Tensor, numbers: dict[str, Any]) -> None:
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = numbers["length"]


def model_facts(config: PreTrainedConfig) -> dict[str, Any]:
    """What of a config decides which keys and values the model computes."""
    facts = config.get_text_config(decoder=True).to_dict()
    return {k: v for k, v in json.loads(json.dumps(facts, default=str)).items() if k not in _PASSING}


def _check(path: Path, about: Any, config: PreTrainedConfig, spec: str | CacheSpec | None) -> None:
    if not isinstance(about, dict) or "format" not in about:
        raise QuantKVError(f"{path} is no saved cache")
    if about["format"] != FORMAT_VERSION:
        raise QuantKVError(f"{path} has format version {about['format']}, this is version {FORMAT_VERSION}")
    if spec is not None and parse_spec(spec) != parse_spec(about["spec"]):
        raise QuantKVError(f"{path} holds {about['spec']}, not {parse_spec(spec)}")
    saved, given = about["model"], model_facts(config)
    different = sorted(k for k in saved.keys() | given.keys() if saved.get(k) != given.get(k))
    if different:
        both = "; ".join(
            f"{k} {saved.get(k)!r} in the file, {given.get(k)!r} in the model" for k in different[:4]
        )
        raise QuantKVError(f"{path} belongs to another model: {both}")
