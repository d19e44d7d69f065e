"""Numbers in a storage dtype: rounded in one direction, so that a stored range covers the values it was made
for, and counted where they lie beyond what the dtype holds, which is stored as its end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_SMALLEST_HALF = 2.0**-24
"""The smallest positive float16, a subnormal; the wider dtypes need none, and CPUs may flush theirs to 0."""
_INT = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _step(stored: Tensor, up: bool) -> Tensor:
    """The next number of the dtype, towards plus or minus infinity (IEEE bit patterns are ordered)."""
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
    """The largest number of `dtype` not above `x`; its end for what lies beyond the finite range."""
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    stored = x.to(dtype)
    return torch.where(stored.to(x.dtype) > x, _step(stored, up=False), stored)


def round_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of `dtype` not below `x`; its end for what lies beyond the finite range."""
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    stored = x.to(dtype)
    return torch.where(stored.to(x.dtype) < x, _step(stored, up=True), stored)


def round_up_positive(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`round_up` for scales: never 0, so that dividing by the result is always defined."""
    smallest = _SMALLEST_HALF if dtype == torch.float16 else torch.finfo(dtype).tiny
    return round_up(x.clamp_min(smallest), dtype)


def saturated(x: Tensor, fields: Mapping[str, Tensor]) -> int:
    """How many stored numbers of `fields`, which encode `x`, stand at the end of their dtype's range or are
    not finite: scales and zeros, and values kept in a dtype of a smaller range. Codes do not count."""
    return int(count_saturated(x, fields))


def count_saturated(x: Tensor, fields: Mapping[str, Tensor]) -> Tensor | int:
    """The same without reading it back from a device."""
    return sum(
        (~(numbers.abs() < torch.finfo(numbers.dtype).max)).sum()
        for numbers in fields.values()
        if numbers.dtype.is_floating_point and numbers.dtype.itemsize > 1 and not _lossless(x, numbers)
    )


def _lossless(x: Tensor, numbers: Tensor) -> bool:
    """Whether `numbers` are `x` itself in a dtype of its range, where nothing can be lost at the end."""
    return numbers.shape == x.shape and torch.finfo(numbers.dtype).max >= torch.finfo(x.dtype).max
