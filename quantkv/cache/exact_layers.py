"""What a layer of transformers holds, as tensors and plain facts: keys and values, or running states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantkv.errors import UnsupportedError


def held_tensors(layer: Any) -> list[Tensor]:
    """What a layer of transformers keeps: keys and values, and the states of linear layers, which lie in
    dicts."""
    held = [t for x in vars(layer).values() for t in (x.values() if isinstance(x, dict) else [x])]
    return [t for t in held if isinstance(t, Tensor) and t.numel() > 1]


def held_nbytes(layer: Any) -> int:
    """Bytes of their storages."""
    return sum(t.untyped_storage().nbytes() for t in held_tensors(layer))


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
