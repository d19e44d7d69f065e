"""Affine integers: `x ≈ scale · code + zero`, 2 to 8 bits, any sharing word.

Asymmetric: `zero` is the block's minimum and `scale` its range over `2**bits − 1` steps. Symmetric: codes
are centred on `2**(bits−1)` and `scale` is the block's largest magnitude over `2**(bits−1) − 1`, without a
stored zero; what is stored is the magnitude, because its small fractions leave float16's normal numbers.
What is stored is rounded to its dtype first, and the codes are made with the stored numbers.

Rounding `outward` (ours): zero down, scale up and never to 0, so no value within range clips and constant
blocks survive. Rounding `nearest` (as KIVI publishes it, Liu et al. 2024): both to nearest, scale 1 where the
block is constant, and symmetric scales are stored as they are. Effective bits: `bits + metadata bits /
elements that share it`, so int4 per token and head of 64 channels with float16 scale and zero takes 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantkv.codecs import terms
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import SHARED_DIMS, Field, Sharing, compute_dtype
from quantkv.codecs.options import Metadata
from quantkv.codecs.place import Place, Tokens
from quantkv.codecs.rounding import round_down, round_nearest, round_up_positive


@dataclass(frozen=True)
class AffineOptions:
    sym: bool = False
    metadata: Metadata = "fp16"
    near: bool = False
    """Metadata is rounded to nearest."""


class Affine(Codec):
    def __init__(
        self,
        bits: int,
        sharing: Sharing,
        *,
        symmetric: bool = False,
        metadata: torch.dtype = torch.float16,
        outward: bool = True,
    ) -> None:
        self.bits, self.sharing, self.symmetric = bits, sharing, symmetric
        self.metadata, self.outward = metadata, outward
        self.group_tokens = sharing.tokens
        self.rule = "outward" if outward else "nearest"

    def fields(self, place: Place) -> tuple[Field, ...]:
        names = ("scale",) if self.symmetric else ("scale", "zero")
        return self.sharing.fields(place, self.bits, self.metadata, *names)

    def terms(self, place: Place) -> tuple[terms.Term, ...]:
        scales = (terms.Scale("scale", self.sharing, self._unit),)
        if self.symmetric:
            return (terms.Codes("codes", terms.Affine(2.0 ** (self.bits - 1)), scales),)
        return (terms.Codes("codes", terms.Affine(), scales, terms.Scale("zero", self.sharing)),)

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        blocks = self.sharing.split(x.to(compute_dtype(x.dtype)))
        scale, zero = self._symmetric(blocks) if self.symmetric else self._asymmetric(blocks)
        if zero is None:
            codes = blocks.div(scale.to(blocks.dtype) * self._unit).round_().add_(2 ** (self.bits - 1))
        else:
            codes = blocks.sub(zero.to(blocks.dtype)).div_(scale.to(blocks.dtype)).round_()
        codes = codes.clamp_(0, 2**self.bits - 1).to(torch.uint8).reshape(x.shape)
        out = {"codes": codes, "scale": Sharing.entry(scale)}
        if zero is not None:
            out["zero"] = Sharing.entry(zero)
        return out

    @property
    def _largest_code(self) -> int:
        return 2 ** (self.bits - 1) - 1

    @property
    def _unit(self) -> float:
        """What stored scales count in."""
        return 1.0 / self._largest_code if self.symmetric and self.outward else 1.0

    def _asymmetric(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        low, high = blocks.amin(SHARED_DIMS, keepdim=True), blocks.amax(SHARED_DIMS, keepdim=True)
        steps = 2**self.bits - 1
        if self.outward:
            zero = round_down(low, self.metadata)
            return round_up_positive((high - zero.to(blocks.dtype)) / steps, self.metadata), zero
        scale = round_nearest((high - low) / steps, self.metadata)
        return torch.where(scale == 0, torch.ones_like(scale), scale), round_nearest(low, self.metadata)

    def _symmetric(self, blocks: Tensor) -> tuple[Tensor, None]:
        largest = blocks.abs().amax(SHARED_DIMS, keepdim=True)
        if self.outward:
            return round_up_positive(largest, self.metadata), None
        scale = round_nearest(largest / self._largest_code, self.metadata)
        return torch.where(scale == 0, torch.ones_like(scale), scale), None
