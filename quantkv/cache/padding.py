"""Left padding of the rows of a batch: from a 2-D mask, or from position ids that can mean nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def leading_zeros(mask: Tensor) -> list[int]:
    """How many leading positions of each row of a 2-D mask are padding."""
    return (mask.bool().cumsum(-1) == 0).sum(-1).tolist()


def counted_padding(positions: Any, rows: int, length: int) -> list[int] | None:
    """Leading padding of each row, from position ids `[rows or 1, length]`: a constant for padding, then
    0, 1, 2, … to the end.

    None where there are no such ids, or a row's do anything else: they restart (packed sequences), jump
    (branches of a tree), begin elsewhere, or never count, so that nothing tells padding from a first token.
    """
    if not isinstance(positions, Tensor) or tuple(positions.shape) not in ((1, length), (rows, length)):
        return None
    pads = length - 1 - positions[:, -1:]
    expected = torch.arange(length, device=positions.device) - pads
    constant = (positions == positions[:, :1]) & (positions.abs() <= 1)
    fits = torch.where(expected >= 0, positions == expected, constant)
    tells = (pads == 0) | ((pads > 0) & (pads < length - 1))
    return pads.expand(rows, 1).flatten().tolist() if bool(fits.all() and tells.all()) else None
