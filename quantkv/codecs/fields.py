"""The arrays of a page, and which elements share a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantkv.codecs.place import Place
from quantkv.errors import QuantKVError

CODE_BITS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Widths of codes that the store can pack."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a page: `[heads, page_tokens / tokens, width]` elements of `dtype`.

    `heads` is the number of KV heads, or 1 where all heads share an entry; `tokens` is how many tokens
    share one. With `bits` the elements are uint8 codes of which only the low `bits` are stored; codecs
    always see them unpacked. A `tiled` field has an element for each head and token and for each of `width`
    channels: engines lay it out. All others lie plainly.
    """

    name: str
    dtype: torch.dtype
    heads: int
    tokens: int
    width: int
    bits: int | None = None
    tiled: bool = False

    def __post_init__(self) -> None:
        if self.tiled and self.tokens != 1:
            raise QuantKVError(f"the tiled field {self.name!r} needs elements of its own for each token")
        if self.bits is None:
            return
        if self.bits not in CODE_BITS or self.dtype != torch.uint8:
            raise QuantKVError(
                f"the field {self.name!r} has {self.bits} bits of {self.dtype}; legal: uint8 codes of "
                + ", ".join(map(str, CODE_BITS))
            )

    def shape(self, page_tokens: int) -> tuple[int, int, int]:
        return self.heads, page_tokens // self.tokens, self.width


def codes_field(place: Place, bits: int) -> Field:
    """Codes of so many bits, one for each head, token and channel."""
    return Field("codes", torch.uint8, place.num_heads, 1, place.head_dim, bits, tiled=True)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Arithmetic on tensors of `dtype` happens in float32, and in float64 for float64 models."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which elements share one scale: a block of heads × `tokens` × `channels` (None means all of them)."""

    tokens: int = 1
    channels: int | None = None
    all_heads: bool = False

    def entry_shape(self, num_heads: int, head_dim: int) -> tuple[int, int]:
        """(heads, width) of a metadata entry."""
        channels = self.channels or head_dim
        if head_dim % channels:
            legal = [d for d in range(1, head_dim + 1) if head_dim % d == 0 and d >= 8] or [head_dim]
            raise QuantKVError(
                f"a group of {channels} channels does not divide head_dim {head_dim}; legal groups: "
                + ", ".join(map(str, legal))
            )
        return (1 if self.all_heads else num_heads), head_dim // channels

    def fields(self, place: Place, bits: int, metadata: torch.dtype, *names: str) -> tuple[Field, ...]:
        """Codes of `bits`, and for each of `names` a number per block."""
        heads, width = self.entry_shape(place.num_heads, place.head_dim)
        numbers = [Field(name, metadata, heads, self.tokens, width) for name in names]
        return codes_field(place, bits), *numbers

    def split(self, x: Tensor) -> Tensor:
        """View `[N, H, T, D]` as `[N, heads, H/heads, T/tokens, tokens, width, D/width]`."""
        n, num_heads, length, head_dim = x.shape
        heads, width = self.entry_shape(num_heads, head_dim)
        return x.reshape(
            n, heads, num_heads // heads, length // self.tokens, self.tokens, width, head_dim // width
        )

    @staticmethod
    def entry(metadata: Tensor) -> Tensor:
        """Numbers reduced over `SHARED_DIMS` of a `split`, as `[N, heads, T/tokens, width]`."""
        return metadata[:, :, 0, :, 0, :, 0]

    @staticmethod
    def spread(entry: Tensor) -> Tensor:
        """`[N, heads, T/tokens, width]` metadata to a shape that broadcasts against `split`."""
        return entry[:, :, None, :, None, :, None]


SHARED_DIMS = (2, 4, 6)
"""The dimensions of `Sharing.split` over which one scale is shared."""
