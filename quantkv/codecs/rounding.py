"""Directed rounding to a storage dtype, so that a stored range always covers the values it was made for."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST_HALF = 2.0**-24
"""The smallest positive float16, a subnormal; the wider dtypes need none, and CPUs may flush theirs to 0."""
_INT = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _step(stored: Tensor, up: bool) -> Tensor:
    """The neighbouring number of the same dtype, towards plus or minus infinity (IEEE bit patterns are
    ordered)."""
    integer = _INT[stored.dtype.itemsize]
    bits = stored.view(integer)
    lowest = torch.iinfo(integer).min
    away = (bits >= 0) == up
    moved = torch.where(away, bits + 1, bits - 1)
    from_zero = torch.full_like(bits, 1 if up else lowest + 1)
    return torch.where(stored == 0, from_zero, moved).view(stored.dtype)


def round_nearest(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest finite number of `dtype`."""
    return x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)


def round_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of `dtype` that is not above `x`; what lies beyond the finite range comes back as
    its end."""
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    stored = x.to(dtype)
    return torch.where(stored.to(x.dtype) > x, _step(stored, up=False), stored)


def round_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of `dtype` that is not below `x`; what lies beyond the finite range comes back as
    its end."""
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    stored = x.to(dtype)
    return torch.where(stored.to(x.dtype) < x, _step(stored, up=True), stored)


def round_up_positive(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`round_up` for scales: never 0, so that dividing by the result is always defined."""
    smallest = _SMALLEST_HALF if dtype == torch.float16 else torch.finfo(dtype).tiny
    return round_up(x.clamp_min(smallest), dtype)
