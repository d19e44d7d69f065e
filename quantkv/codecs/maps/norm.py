"""`norm` and `normall`: tokens divided by their size, so that codecs are given numbers of unit size.

The size is the root mean square over a head's channels (`norm`), or over all heads and channels (`normall`),
rounded up to float16 and never 0. Published methods store the Euclidean norm, √D times as large (√(H D) over
all heads), and their codebooks count in units of 1/√D: made for numbers of unit size, a codebook here has no
such factor. TurboQuant (Zandieh et al. 2025) has a norm per token and head; OScaR (2026) one for all heads,
because in groups along tokens the largest token decides the step for its neighbours.

Of a token of zeros the size is 2⁻²⁴, float16's smallest number, and of one beyond float16 it is 65504: what
the codec is given is then larger than 1, and the store says that numbers stand at the end of their range.
Bits: 16 / D with a size per head, 16 / (H D) over all.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from quantkv.codecs.fields import Field
from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place, Tokens
from quantkv.codecs.rounding import round_up_positive
from quantkv.codecs.steps import Step, TokenScale


class Norm(Map):
    unit = True
    name: ClassVar[str] = "norm"

    def step(self, place: Place) -> Step | None:
        return TokenScale(self.name)

    def fields(self, place: Place) -> tuple[Field, ...]:
        return (Field(self.name, torch.float16, place.num_heads, 1, 1),)

    def measure(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        return {self.name: _size(x)}


class NormAll(Norm):
    name = "normall"

    def fields(self, place: Place) -> tuple[Field, ...]:
        return (Field(self.name, torch.float16, 1, 1, 1),)

    def measure(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        return {self.name: _size(x.movedim(1, 2).flatten(2)[:, None])}


def _size(x: Tensor) -> Tensor:
    """Root mean square over the last dimension, `[N, H, T, 1]`; in float64, whose squares do not overflow."""
    squares = x.to(torch.float64).square()
    return round_up_positive((summed(squares) / x.shape[-1]).sqrt(), torch.float16)


def summed(x: Tensor) -> Tensor:
    """The sum over the last dimension, which stays, by adding halves: the order of torch's own sum depends on
    how many others there are."""
    while (width := x.shape[-1]) > 1:
        half = width // 2
        sums = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat([sums, x[..., -1:]], -1) if width % 2 else sums
    return x
