"""A model without data, and what its layers cache, found by running it.

Configurations name heads and widths in a dozen ways, and states of linear layers nowhere. So the model is
built on the `meta` device, where tensors have shapes and no memory, and reads two tokens there: its own code
says what every layer caches.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedConfig

from quantkv.cache.layer_shapes import LayerShape, layer_shapes
from quantkv.cache.names import cache_argument
from quantkv.errors import UnsupportedError, first_line
from quantkv.quiet import quiet

TOKENS = 2


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
