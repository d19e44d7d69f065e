"""`smooth`: each key channel divided by λ, the square root of its standard deviation over the row's first
packed tokens, so that wide channels take less of a shared scale.

SmoothAttention of QServe (Lin et al. 2024) calibrates `λ = max|k|^0.5` once and folds it into the weights,
alike for both channels of a pair that RoPE turns. Here λ is each row's own and applies after RoPE, so pairs
need not agree; and it is made of the deviation (over W, not W − 1), not of the largest magnitude, because one
token of many decides about that, and what all tokens share is `ctr`'s. A channel's λ is at least 1/256 of the
largest of its head, and 1 where none varies. Row state: 32 bits for each head and channel.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place, Which
from quantkv.codecs.steps import Step, Stretch

LEAST = 1 / 256
"""The smallest λ of a head over its largest: channels that hardly vary are not blown up."""
STILL = 1e-30
"""What has no larger λ does not vary: its square root would leave float32."""


class Smooth(Map):
    tensors: ClassVar[tuple[Which, ...]] = ("key",)
    fits = True

    def step(self, place: Place) -> Step | None:
        return Stretch("stretch")

    def fit(self, x: Tensor) -> dict[str, Tensor]:
        stretch = x.std(-2, correction=0).sqrt()
        largest = stretch.amax(-1, keepdim=True)
        return {"stretch": torch.where(largest > STILL, torch.maximum(stretch, largest * LEAST), 1.0)}
