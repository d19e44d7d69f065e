"""8-bit floats with a scale: `x ≈ scale · code`, code in E4M3 (largest 448) or E5M2 (largest 57344).

The stored scale is the block's largest magnitude, rounded up to its storage dtype and never 0, and counts in
units of one over the format's largest number (a scale divided by 448 or more would leave float16's normal
numbers); values are clamped before the cast because torch saturates or not depending on its version (OCP
8-bit floating point, 2023). Effective bits: 8 + metadata bits / elements that share it (8.25 for head_dim
64 per token and head).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from quantkv.codecs.base import SHARED_DIMS, Codec, Field, Kernel, Sharing, compute_dtype
from quantkv.codecs.rounding import round_up_positive


class Float8(Codec):
    def __init__(self, code: torch.dtype, sharing: Sharing, *, metadata: torch.dtype = torch.float16) -> None:
        self.code, self.sharing, self.metadata = code, sharing, metadata
        self.group_tokens = sharing.tokens

    def fields(self, num_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Field, ...]:
        return self.sharing.fields(num_heads, head_dim, 8, self.metadata, "scale")

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        blocks = self.sharing.split(x.to(compute_dtype(x.dtype)))
        largest = torch.finfo(self.code).max
        scale = round_up_positive(blocks.abs().amax(SHARED_DIMS, keepdim=True), self.metadata)
        scaled = (blocks / (scale.to(blocks.dtype) * self._unit)).clamp_(-largest, largest)
        codes = scaled.to(torch.float32).to(self.code).view(torch.uint8).reshape(x.shape)
        return {"codes": codes, "scale": Sharing.entry(scale)}

    def decode(self, fields: dict[str, Tensor], head_dim: int, dtype: torch.dtype) -> Tensor:
        codes = fields["codes"].contiguous().view(self.code).to(dtype)
        blocks = self.sharing.split(codes).mul_(Sharing.spread(fields["scale"].to(dtype) * self._unit))
        return blocks.reshape(codes.shape)

    @property
    def _unit(self) -> float:
        return 1.0 / torch.finfo(self.code).max

    def kernel(self) -> Kernel:
        number: Literal["e4m3", "e5m2"] = "e4m3" if self.code == torch.float8_e4m3fn else "e5m2"
        return Kernel(number, self.sharing, unit=self._unit, encodes=True)
