"""What a codec is: two pure functions between exact tensors and the named fields of a page.

A codec knows nothing of layers, time or models. It declares its fields (so that the store can lay out pages
and count bytes before anything runs), and turns `[N, H, T, D]` tensors into fields and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quantkv.errors import QuantKVError

CODE_BITS = (1, 2, 3, 4, 5, 6, 8)
"""Widths of codes that the store can pack."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a page: `[heads, page_tokens / tokens, width]` elements of `dtype`.

    `heads` is the number of KV heads, or 1 where all heads share an entry; `tokens` is how many tokens
    share one. With `bits` the elements are uint8 codes, one per head, token and channel, of which only the
    low `bits` are stored; codecs always see them unpacked.
    """

    name: str
    dtype: torch.dtype
    heads: int
    tokens: int
    width: int
    bits: int | None = None

    def __post_init__(self) -> None:
        if self.bits is None:
            return
        if self.bits not in CODE_BITS or self.dtype != torch.uint8:
            raise QuantKVError(
                f"the field {self.name!r} has {self.bits} bits of {self.dtype}; legal: uint8 codes of "
                + ", ".join(map(str, CODE_BITS))
            )

    def shape(self, page_tokens: int) -> tuple[int, int, int]:
        return self.heads, page_tokens // self.tokens, self.width


@dataclass(frozen=True, slots=True)
class Kernel:
    """What native kernels need to know of a codec whose fields are "codes" (or "values"), "scale" and
    "zero": `x̂ = scale · number(code) + zero`, or the values themselves.

    `number` is one of affine (`code − centre`), e4m3, e5m2, table (`table[code]`) and raw; without `sharing`
    there are neither scales nor zeros.
    """

    number: Literal["affine", "e4m3", "e5m2", "table", "raw"]
    sharing: Sharing | None = None
    has_zero: bool = False
    centre: float = 0.0
    unit: float = 1.0
    """What stored scales count in."""
    outward: bool = True
    """Zeros were rounded down and scales up (else both to nearest)."""
    table: tuple[float, ...] = ()
    encodes: bool = False
    """Whether kernels may encode: whether `encode` stores bit for bit what their rule does, the range of a
    block (affine), its largest magnitude (floats with a scale) or a cast (raw)."""


class Codec(ABC):
    """Encode and decode keys or values. Stateless; one instance serves every layer with the same spec."""

    group_tokens: int = 1
    """How many consecutive tokens are encoded together; `encode` takes multiples of it."""

    @abstractmethod
    def fields(self, num_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Field, ...]:
        """The fields of a page for tensors of `dtype`; raises QuantKVError where the shape is impossible."""

    @abstractmethod
    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, H, T, D]` to one `[N, heads, T / tokens, width]` tensor per field, codes unpacked."""

    @abstractmethod
    def decode(self, fields: dict[str, Tensor], head_dim: int, dtype: torch.dtype) -> Tensor:
        """Fields back to `[N, H, T, D]`, computed and returned in `dtype` (float32 or float64)."""

    def kernel(self) -> Kernel | None:
        """How native kernels may read and write the fields themselves; None where only this codec can."""
        return None


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

    def fields(
        self, num_heads: int, head_dim: int, bits: int, metadata: torch.dtype, *names: str
    ) -> tuple[Field, ...]:
        """Codes of `bits`, and for each of `names` a number per block."""
        heads, width = self.entry_shape(num_heads, head_dim)
        numbers = [Field(name, metadata, heads, self.tokens, width) for name in names]
        return Field("codes", torch.uint8, num_heads, 1, head_dim, bits), *numbers

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
