"""What can be said of a model and a dtype from their names alone, without a library that loads models."""

from __future__ import annotations

import torch

from quantkv.errors import QuantKVError
from quantkv.models.packaged import PACKAGED_MODELS

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}


def dtype_named(name: str, *beside: str) -> torch.dtype:
    """Raises QuantKVError naming the legal names, and those that are legal `beside` them."""
    if name not in DTYPES:
        raise QuantKVError(f"unknown dtype {name!r}; legal: {', '.join([*DTYPES, *beside])}")
    return DTYPES[name]


def is_random(name: str) -> bool:
    return name.startswith("random-")


def is_built_in(name: str) -> bool:
    """Whether a name stands for a model of its own, whatever lies in a folder of that name."""
    return is_random(name) or name in PACKAGED_MODELS
