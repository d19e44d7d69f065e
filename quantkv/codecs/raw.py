"""Raw floats: the values themselves in float32, float16 or bfloat16, or (`exact`) in the model's own dtype.

Effective bits: the width of the dtype. Values beyond the dtype's largest number are clamped to it, so they
stay finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv.codecs.base import Codec, Field, Kernel, compute_dtype


class Raw(Codec):
    def __init__(self, dtype: torch.dtype | None) -> None:
        """`dtype` None stores in the dtype of what is given: lossless."""
        self.dtype = dtype

    def fields(self, num_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Field, ...]:
        return (Field("values", self.dtype or dtype, num_heads, 1, head_dim),)

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        if self.dtype is None or self.dtype == x.dtype:
            return {"values": x}
        limits = torch.finfo(self.dtype)
        if limits.max < torch.finfo(x.dtype).max:
            x = x.to(compute_dtype(x.dtype)).clamp(limits.min, limits.max)
        return {"values": x.to(self.dtype)}

    def decode(self, fields: dict[str, Tensor], head_dim: int, dtype: torch.dtype) -> Tensor:
        return fields["values"].to(dtype)

    def kernel(self) -> Kernel:
        return Kernel("raw", encodes=True)
