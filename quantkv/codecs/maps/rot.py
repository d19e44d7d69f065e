"""`rot`: each head's channels times a given orthogonal matrix, the constant `rot` `[H, D, D]` of the place:
`x @ R` is stored, and decoded by `@ Rᵀ`.

A rotation fitted to a model's keys gathers what they share (PCA), or levels it better than a Hadamard matrix.
One matrix per head, because heads differ. No bits; constants are counted beside the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place
from quantkv.codecs.steps import Matrix, Step
from quantkv.errors import QuantKVError

NAME = "rot"
NEAR = 1e-4
"""How far the products of a matrix's columns may be from those of an orthogonal one: float32 is within 1e-6,
and rounding to 16 bits is not."""


class Rot(Map):
    def step(self, place: Place) -> Step | None:
        shape = (place.num_heads, place.head_dim, place.head_dim)
        matrix = place.constants.get(NAME)
        if matrix is None or tuple(matrix.shape) != shape:
            found = "none is given" if matrix is None else f"given is {list(matrix.shape)}"
            raise QuantKVError(
                f"rot needs a constant {NAME!r} {list(shape)} for the {place}; {found}. Constants are "
                "registered under a name and said by +c.NAME; k.… and v.… rotate keys or values alone"
            )
        if not _error(matrix) <= NEAR:  # nor is one of NaN
            raise QuantKVError(
                f"the constant {NAME!r} for the {place} is not orthogonal: R Rᵀ differs from the identity by "
                f"{_error(matrix):.1e}, and {NEAR:g} is allowed"
            )
        return Matrix(NAME)


def _error(matrix: Tensor) -> float:
    matrix = matrix.to(torch.float64)
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    return float((matrix @ matrix.transpose(-1, -2) - identity).abs().max())
