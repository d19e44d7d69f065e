"""What a codec is: the fields of a page, how a number is made from them, and the function that makes them.

A codec knows nothing of layout, time or models. It declares its fields (so that the store can lay out pages
and count bytes before anything runs) and the terms that add up to a number (from which decoding, its formula
and the programs of engines follow), and turns `[N, H, T, D]` tensors into fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor

from quantkv.codecs.fields import Field
from quantkv.codecs.place import Place, Tokens
from quantkv.codecs.terms import Term

Rounding = Literal["outward", "nearest"]


class Codec(ABC):
    """Makes the fields of keys or values. Stateless; one instance serves every layer with the same spec."""

    group_tokens: int = 1
    """How many consecutive tokens are encoded together; `encode` takes multiples of it."""

    rule: Rounding | None = None
    """Whether engines may encode by themselves, because `encode` stores bit for bit what their own rule does:
    the range of a block (affine codes with a zero), its largest magnitude (without one, and 8-bit floats), or
    a cast (plain floats); scales rounded up and zeros down (`outward`), or both to nearest."""

    @abstractmethod
    def fields(self, place: Place) -> tuple[Field, ...]:
        """The fields of a page; raises QuantKVError where the shape is impossible."""

    @abstractmethod
    def terms(self, place: Place) -> tuple[Term, ...]:
        """What adds up to a number, over these fields."""

    @abstractmethod
    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        """`[N, H, T, D]` to one `[N, heads, T / tokens, width]` tensor per field, codes unpacked."""
