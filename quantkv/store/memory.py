"""Memory that outlives the call that asks for it: what is allocated or copied in inference mode could never
be written outside it."""

from __future__ import annotations

import torch
from torch import Tensor


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ordinary uninitialised memory, also in inference mode."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=dtype, device=device)


def copied(x: Tensor) -> Tensor:
    """An ordinary contiguous copy, also in inference mode."""
    return allocate(tuple(x.shape), x.dtype, x.device).copy_(x)
