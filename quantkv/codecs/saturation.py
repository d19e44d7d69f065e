"""Which numbers a page could not hold: what lies beyond a dtype's range is stored as its end, and decodes to
something else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


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
