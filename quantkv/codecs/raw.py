"""Raw floats: the values themselves in float32, float16 or bfloat16, or (`exact`) in the model's own dtype.

Effective bits: the width of the dtype. Values beyond the dtype's largest number are clamped to it, so they
stay finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv.codecs import terms
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Field, compute_dtype
from quantkv.codecs.place import Place, Tokens


class Raw(Codec):
    rule = "outward"

    def __init__(self, dtype: torch.dtype | None) -> None:
        """`dtype` None stores in the dtype of what is given: lossless."""
        self.dtype = dtype

    def fields(self, place: Place) -> tuple[Field, ...]:
        dtype = self.dtype or place.dtype
        return (Field("values", dtype, place.num_heads, 1, place.head_dim, tiled=True),)

    def terms(self, place: Place) -> tuple[terms.Term, ...]:
        return (terms.Codes("values", terms.Plain()),)

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        if self.dtype is None or self.dtype == x.dtype:
            return {"values": x}
        limits = torch.finfo(self.dtype)
        if limits.max < torch.finfo(x.dtype).max:
            x = x.to(compute_dtype(x.dtype)).clamp(limits.min, limits.max)
        return {"values": x.to(self.dtype)}
