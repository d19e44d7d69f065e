"""Tiny models of any family in float64, without a weight that initialisation leaves constant."""

from __future__ import annotations

import copy
from typing import Any

import torch
from support.architectures import tiny_model

from quantkv.quiet import quiet


def family_model(family: str, **settings: Any) -> Any:
    """Vectors such as biases and norms get noise: what starts at 0 or 1 hides whatever is made with it."""
    with quiet():
        model = tiny_model(family, **copy.deepcopy(settings)).double()
    if getattr(model.config, "_experts_implementation", None) is not None:
        model.set_experts_implementation("eager")  # grouped products know no float64
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.data.add_(noise, alpha=0.3)
    return model.requires_grad_(False)
