"""What the layers of a model cache, as heads, widths and bytes: read off a cache that has seen a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantkv.errors import UnsupportedError

STATES = ("conv_states", "recurrent_states")


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Keys or values of one row and layer: `[heads, tokens, width]` of `dtype`."""

    heads: int
    width: int
    dtype: torch.dtype

    @property
    def token_nbytes(self) -> int:
        return self.token_elements * self.dtype.itemsize

    @property
    def token_elements(self) -> int:
        return self.heads * self.width


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one row of one layer holds; bytes of `extra` come with every token, `states` with the first.

    `kind` is the class of transformers' exact layer; `key` and `value` are None where a layer caches none
    (linear attention; layers that read another layer's keys).
    """

    kind: str
    key: TensorShape | None = None
    value: TensorShape | None = None
    extra: int = 0
    states: int = 0
    window: int | None = None

    @property
    def token_nbytes(self) -> int:
        """Bytes that one exact token of one row takes."""
        return self.extra + sum(t.token_nbytes for t in (self.key, self.value) if t is not None)

    @property
    def token_elements(self) -> int:
        """Key and value elements of one token of one row."""
        return sum(t.token_elements for t in (self.key, self.value) if t is not None)


def layer_shapes(cache: Any) -> list[LayerShape]:
    """The shapes in a `DynamicCache` that saw one call of one row or more. Raises UnsupportedError for layer
    classes that a model brings along: only the model knows what those keep."""
    return [_layer_shape(index, layer) for index, layer in enumerate(cache.layers)]


def _layer_shape(index: int, layer: Any) -> LayerShape:
    kind = type(layer)
    if kind.__module__ != "transformers.cache_utils":
        raise UnsupportedError(
            f"layer {index} is a {kind.__name__}, a kind of cache that only its model knows"
        )
    tensors = {name: value for name, value in vars(layer).items() if isinstance(value, Tensor)}
    tensors = {name: t for name, t in tensors.items() if t.numel() > 1 and name not in STATES}
    key, value = (tensors.pop(name, None) for name in ("keys", "values"))
    states = [t for name in STATES for t in _each(getattr(layer, name, None))]
    first = next((t for t in (key, *states) if t is not None), None)
    rows, tokens = 1 if first is None else first.shape[0], 1 if key is None else key.shape[-2]
    return LayerShape(
        kind=kind.__name__,
        key=_tensor_shape(key),
        value=_tensor_shape(value),
        extra=sum(t.nbytes for t in tensors.values()) // (rows * tokens),
        states=sum(t.nbytes for t in states) // rows,
        window=getattr(layer, "sliding_window", None),
    )


def _each(states: Any) -> list[Tensor]:
    """A layer's states: one tensor, or several by number, some of which may never be set."""
    found = states.values() if isinstance(states, dict) else [states]
    return [t for t in found if isinstance(t, Tensor)]


def _tensor_shape(x: Tensor | None) -> TensorShape | None:
    return None if x is None else TensorShape(x.shape[1], x.shape[-1], x.dtype)
