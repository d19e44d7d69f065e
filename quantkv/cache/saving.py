"""Saving a cache to one safetensors file and loading it again, with everything checked that must agree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quantkv.cache.layer import QuantizedLayer
from quantkv.codecs.constants import constants_named
from quantkv.errors import QuantKVError, UnsupportedError, first_line
from quantkv.spec.specs import CacheSpec, parse_spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FORMAT_VERSION = 4
_PASSING = (
    "_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation", "use_cache",
)  # fmt: skip
"""Config entries that say nothing about which keys and values a model computes."""


@dataclass(frozen=True)
class SavedCache:
    """What a file holds: how the cache was made, and what each layer held."""

    path: Path
    spec: str
    prefill: str
    layers: list[dict[str, Any]]
    tensors: dict[str, Tensor]

    def fill(self, layers: list[Any]) -> None:
        """Give the layers of a new cache what those of the saved one held."""
        try:
            for index, (layer, saved) in enumerate(zip(layers, self.layers, strict=True)):
                own = [name for name in self.tensors if name.startswith(f"{index}.")]
                _fill(layer, {name.removeprefix(f"{index}."): self.tensors[name] for name in own}, saved)
        except (KeyError, IndexError, TypeError, RuntimeError) as error:
            raise QuantKVError(
                f"{self.path} is damaged: {type(error).__name__}: {first_line(error)}"
            ) from error


def write_cache(
    path: Path, layers: list[Any], config: PreTrainedConfig, spec: CacheSpec, prefill: str
) -> None:
    """Packed pages, exact tokens and tables of every layer; other layers' attributes as they are."""
    tensors: dict[str, Tensor] = {}
    held = []
    for index, layer in enumerate(layers):
        parts, facts = layer.state() if isinstance(layer, QuantizedLayer) else layer_state(index, layer)
        held.append({"kind": type(layer).__name__, "facts": facts})
        tensors |= {f"{index}.{part}": x.contiguous().clone() for part, x in parts.items()}
    about = {"format": FORMAT_VERSION, "spec": str(spec), "prefill": prefill}
    about |= {"model": model_facts(config), "layers": held, "constants": _digests(spec)}
    try:
        save_file(tensors, path, metadata={"quantkv": json.dumps(about)})
    except (OSError, SafetensorError) as error:
        raise QuantKVError(f"cannot write a cache to {path}: {error}") from error


def read_cache(path: Path, config: PreTrainedConfig, spec: str | CacheSpec | None = None) -> SavedCache:
    """What was saved, for the model of `config`. QuantKVError names both sides of any disagreement."""
    about, tensors = _read(path)
    _check(path, about, config, spec)
    return SavedCache(path, about["spec"], about["prefill"], about["layers"], tensors)


def _read(path: Path) -> tuple[Any, dict[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("quantkv", "null"))
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise QuantKVError(f"cannot read a cache from {path}: {error}") from error


def _fill(layer: Any, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    if type(layer).__name__ != saved["kind"]:
        raise QuantKVError(
            f"a saved layer is a {saved['kind']}, this model's is a {type(layer).__name__}: save with the "
            "transformers release that loads"
        )
    if isinstance(layer, QuantizedLayer):
        layer.restore(tensors, saved["facts"])
    else:
        restore_layer(layer, tensors, saved["facts"])


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
    if about["constants"] != (own := _digests(parse_spec(about["spec"]))):
        raise QuantKVError(f"{path} was packed with other constants: {about['constants']}, here are {own}")
    saved, given = about["model"], model_facts(config)
    different = sorted(k for k in saved.keys() | given.keys() if saved.get(k) != given.get(k))
    if different:
        both = "; ".join(
            f"{k} {saved.get(k)!r} in the file, {given.get(k)!r} in the model" for k in different[:4]
        )
        raise QuantKVError(f"{path} belongs to another model: {both}")


def _digests(spec: CacheSpec) -> dict[str, str]:
    """Of the constants that a format and its overrides name."""
    names = {own.constants for own in (spec, *(override for _, override in spec.layers))} - {""}
    return {name: constants_named(name).digest for name in sorted(names)}


def layer_state(index: int, layer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Every attribute: tensors by `name` or, in a dict, `name.number`; what is none by its value."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for name, held in vars(layer).items():
        if isinstance(held, Tensor):
            tensors[name] = held
        elif isinstance(held, dict):
            tensors |= {f"{name}.{n}": x for n, x in held.items() if isinstance(x, Tensor)}
            facts[name] = {str(n): _fact(index, x) for n, x in held.items() if not isinstance(x, Tensor)}
        else:
            facts[name] = _fact(index, held)
    return tensors, facts


def restore_layer(layer: Any, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Give a new layer the attributes that `layer_state` told."""
    attributes = vars(layer)
    for name, fact in facts.items():
        plural = isinstance(fact, dict)
        attributes[name] = {int(n): _value(x) for n, x in fact.items()} if plural else _value(fact)
    for name, tensor in tensors.items():
        name, _, number = name.partition(".")
        if number:
            attributes[name][int(number)] = tensor
        else:
            attributes[name] = tensor


def _fact(index: int, value: Any) -> Any:
    """A value as JSON says it: dtypes by name, and devices by nothing, as a file is loaded to the host."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return "host"
    raise UnsupportedError(f"layer {index} holds a {type(value).__name__}, which cannot be saved")


def _value(fact: Any) -> Any:
    if fact == "host":
        return torch.device("cpu")
    return getattr(torch, fact.removeprefix("torch.")) if isinstance(fact, str) else fact
