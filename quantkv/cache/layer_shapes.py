"""What the layers of a model cache, as heads, widths and bytes: read off a cache that has seen a call.

Configurations name heads and widths in a dozen ways, and states of linear layers nowhere. So a model can be
built on the `meta` device, where tensors have shapes and no memory, and read two tokens there: its own code
says what every layer caches.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedConfig

from quantkv.cache.names import cache_argument
from quantkv.errors import UnsupportedError, first_line
from quantkv.quiet import quiet

STATES = ("conv_states", "recurrent_states")
TOKENS = 2


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


def held_tensors(layer: Any) -> list[Tensor]:
    """What a layer of transformers keeps: keys and values, or states of linear layers, which lie in dicts."""
    held = [t for x in vars(layer).values() for t in (x.values() if isinstance(x, dict) else [x])]
    return [t for t in held if isinstance(t, Tensor) and t.numel() > 1]


def held_nbytes(layer: Any) -> int:
    """Bytes of their storages."""
    return sum(t.untyped_storage().nbytes() for t in held_tensors(layer))


def model_without_data(config: PreTrainedConfig, dtype: torch.dtype) -> Any:
    """The causal language model that transformers builds for a configuration, on the meta device. Stored
    quantization is left aside: it packs weights, not shapes. Raises UnsupportedError where there is none."""
    from transformers import AutoModelForCausalLM  # brings all of transformers' models, which caches need not

    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    try:
        with quiet(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation="eager")
    except Exception as error:  # configs and models raise errors of many kinds
        raise UnsupportedError(
            f"{_family(config)}: transformers builds no causal model ({first_line(error)})"
        ) from error
    return model.eval()


def shapes_without_data(model: Any) -> list[LayerShape]:
    """What each layer of such a model caches. Raises UnsupportedError where it cannot run without data."""
    cache = DynamicCache(config=model.config)
    ids = torch.ones(1, TOKENS, dtype=torch.long, device="meta")
    try:
        with quiet(), torch.no_grad(), _Pretend():
            model(input_ids=ids, use_cache=True, logits_to_keep=1, **{cache_argument(model): cache})
    except Exception as error:  # whatever the model's own code raises
        raise UnsupportedError(
            f"{_family(model.config)}: its layers cannot be read off without data ({first_line(error)})"
        ) from error
    return layer_shapes(cache)


def _family(config: PreTrainedConfig) -> str:
    return getattr(config, "model_type", None) or type(config).__name__


class _Pretend(TorchDispatchMode):
    """Answers the few questions about values that models ask on their way: flags are true, numbers 1, and
    routed experts find no token (what they return has the same shape)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0] if args else None
        if isinstance(x, torch.Tensor) and x.is_meta:
            if func is torch.ops.aten._local_scalar_dense.default:
                return x.dtype == torch.bool or 1
            if func is torch.ops.aten.nonzero.default:
                return torch.empty(0, x.dim(), dtype=torch.long, device="meta")
        return func(*args, **(kwargs or {}))
