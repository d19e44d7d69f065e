"""Lloyd–Max tables: the 2^bits numbers that stand for a normal distribution with the least mean square error
(Lloyd 1982, Max 1960), at 2 to 4 bits. `x ≈ table[code]`, without a scale of its own.

Each number is the mean of what is nearest to it, and the edges lie halfway between two of them; for a normal
distribution both are closed forms, and going from one to the other settles on the table. At the edge itself
the lower number is taken.

The table wants numbers of unit size, so it stands behind `norm` or `normall`: `lm3@norm` is the quantizer of
TurboQuant (Zandieh et al. 2025) without its rotation, which `had` before it adds. TurboQuant's tables count
in 1/√D, as its norm is √D times the one here. Effective bits: those of the codes, and 16 / D for the norm.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from quantkv.codecs import terms
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Field, codes_field, compute_dtype
from quantkv.codecs.place import Place, Tokens

SETTLED = 1e-13
"""No number of a table moves by more in a round when it is done."""


class LloydMax(Codec):
    def __init__(self, bits: int) -> None:
        self.bits = bits

    def fields(self, place: Place) -> tuple[Field, ...]:
        return (codes_field(place, self.bits),)

    def terms(self, place: Place) -> tuple[terms.Term, ...]:
        return (terms.Codes("codes", terms.Table(table(self.bits))),)

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        x = x.to(compute_dtype(x.dtype)).contiguous()
        numbers = torch.tensor(table(self.bits), dtype=torch.float64)
        edges = ((numbers[:-1] + numbers[1:]) / 2).to(x.device, x.dtype)
        return {"codes": torch.bucketize(x, edges).to(torch.uint8)}


@lru_cache
def table(bits: int) -> tuple[float, ...]:
    """The 2^bits numbers for a normal distribution of deviation 1, rising, rounded to float32."""
    upper = torch.tensor(_upper_half(bits), dtype=torch.float32).tolist()
    return (*(-x for x in reversed(upper)), *upper)


def _upper_half(bits: int) -> list[float]:
    """The positive numbers, rising; the others are these with the other sign, and 0 is an edge."""
    numbers = [(i + 0.5) / 2 ** (bits - 2) for i in range(2 ** (bits - 1))]
    while True:
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(numbers)), math.inf]
        means = [_mean(low, high) for low, high in pairwise(edges)]
        moved = max(abs(a - b) for a, b in zip(means, numbers, strict=True))
        numbers = means
        if moved < SETTLED:
            return numbers


def _mean(low: float, high: float) -> float:
    """Of a standard normal number between two edges."""
    density = math.exp(-low * low / 2) - math.exp(-high * high / 2)
    return density * math.sqrt(2 / math.pi) / (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2)))
