"""8-bit floats with a scale: `x ≈ scale · code`, code in E4M3 (largest 448) or E5M2 (largest 57344).

The stored scale is the block's largest magnitude, rounded up to its storage dtype and never 0, and counts in
units of one over the format's largest number (a scale divided by 448 or more would leave float16's normal
numbers); values are clamped before the cast because torch saturates or not depending on its version (OCP
8-bit floating point, 2023). Effective bits: 8 + metadata bits / elements that share it (8.25 for head_dim
64 per token and head).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quantkv.codecs import terms
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import SHARED_DIMS, Field, Sharing, compute_dtype
from quantkv.codecs.options import Metadata
from quantkv.codecs.place import Place, Tokens
from quantkv.codecs.rounding import round_up_positive


@dataclass(frozen=True)
class Float8Options:
    metadata: Metadata = "fp16"


class Float8(Codec):
    rule = "outward"

    def __init__(
        self, kind: Literal["e4m3", "e5m2"], sharing: Sharing, *, metadata: torch.dtype = torch.float16
    ) -> None:
        self.number, self.sharing, self.metadata = terms.Float8(kind), sharing, metadata
        self.group_tokens = sharing.tokens

    def fields(self, place: Place) -> tuple[Field, ...]:
        return self.sharing.fields(place, 8, self.metadata, "scale")

    def terms(self, place: Place) -> tuple[terms.Term, ...]:
        return (
            terms.Codes("codes", self.number, (terms.Scale("scale", self.sharing, 1.0 / self._largest),)),
        )

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        blocks = self.sharing.split(x.to(compute_dtype(x.dtype)))
        scale = round_up_positive(blocks.abs().amax(SHARED_DIMS, keepdim=True), self.metadata)
        scaled = blocks / (scale.to(blocks.dtype) * (1.0 / self._largest))
        scaled = scaled.clamp_(-self._largest, self._largest)
        codes = scaled.to(torch.float32).to(terms.FLOAT8[self.number.kind]).view(torch.uint8).reshape(x.shape)
        return {"codes": codes, "scale": Sharing.entry(scale)}

    @property
    def _largest(self) -> float:
        return torch.finfo(terms.FLOAT8[self.number.kind]).max
