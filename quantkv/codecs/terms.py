"""How a number is made from the fields of a page: `x̂ = Σ terms`, declared once.

Decoding in PyTorch, the formula of a method's card and the programs of the engines are derived from it.

    Codes       number(code) · scale · scale … + zero, over all channels or a run of them
    Sparse      a few values of each token and head, by their channels
    LowRank     left · right, of each chunk of tokens and head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quantkv.codecs.fields import Sharing

Fields = Mapping[str, Tensor]
"""Of some pages or tokens: `[N, heads, entries, width]` by name, codes unpacked."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A stored number that a block of elements shares: the field that holds it, and what it counts in."""

    field: str
    sharing: Sharing
    unit: float = 1.0

    def over(self, fields: Fields, dtype: torch.dtype) -> Tensor:
        """As a shape that broadcasts against `sharing.split` of the elements."""
        return Sharing.spread(fields[self.field].to(dtype) * self.unit)

    def __str__(self) -> str:
        return self.field if self.unit == 1 else f"{self.field} / {1 / self.unit:g}"


@dataclass(frozen=True, slots=True)
class Affine:
    """A code less `centre`."""

    centre: float = 0.0

    def of(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        numbers = codes.to(dtype)
        return numbers.sub_(self.centre) if self.centre else numbers

    def __str__(self) -> str:
        return f"(code − {self.centre:g})" if self.centre else "code"


@dataclass(frozen=True, slots=True)
class Table:
    """The code's entry of a table of 2^bits numbers."""

    values: tuple[float, ...]

    def of(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        table = torch.tensor(self.values, dtype=torch.float32, device=codes.device).to(dtype)
        return table[codes.long()]

    def __str__(self) -> str:
        return "table[code]"


FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True, slots=True)
class Float8:
    """The 8 bits of a code as a float."""

    kind: Literal["e4m3", "e5m2"]

    def of(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        return codes.contiguous().view(FLOAT8[self.kind]).to(dtype)

    def __str__(self) -> str:
        return f"{self.kind}(code)"


@dataclass(frozen=True, slots=True)
class Plain:
    """The stored float itself."""

    def of(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        return codes.to(dtype)

    def __str__(self) -> str:
        return "value"


Number = Affine | Table | Float8 | Plain


@dataclass(frozen=True, slots=True)
class Codes:
    """Elements of the tiled field `field`, one for each head, token and channel, from channel `first` on (the
    field's width says how many)."""

    field: str
    number: Number
    scales: tuple[Scale, ...] = ()
    zero: Scale | None = None
    first: int = 0

    def add_to(self, total: Tensor | None, fields: Fields, head_dim: int, dtype: torch.dtype) -> Tensor:
        x = self._numbers(fields, dtype)
        width = x.shape[-1]
        if width == head_dim:
            return x if total is None else total.add_(x)
        if total is None:
            total = x.new_zeros(*x.shape[:-1], head_dim)
        total[..., self.first : self.first + width] += x
        return total

    def _numbers(self, fields: Fields, dtype: torch.dtype) -> Tensor:
        x = self.number.of(fields[self.field], dtype)
        for scale in self.scales:
            x = scale.sharing.split(x).mul(scale.over(fields, dtype)).reshape(x.shape)
        if self.zero is not None:
            x = self.zero.sharing.split(x).add(self.zero.over(fields, dtype)).reshape(x.shape)
        return x

    def __str__(self) -> str:
        product = " · ".join([*map(str, self.scales), str(self.number)])
        return product + (f" + {self.zero}" if self.zero else "")


@dataclass(frozen=True, slots=True)
class Sparse:
    """For each token and head as many values as the fields are wide, each added at the channel that its uint8
    index names. Two that name one channel add up."""

    index: str
    value: str

    def add_to(self, total: Tensor | None, fields: Fields, head_dim: int, dtype: torch.dtype) -> Tensor:
        values, index = fields[self.value].to(dtype), fields[self.index].long()
        if total is None:
            total = values.new_zeros(*values.shape[:-1], head_dim)
        for slot in range(values.shape[-1]):  # one by one: the order of additions is then always the same
            total.scatter_add_(-1, index[..., slot : slot + 1], values[..., slot : slot + 1])
        return total

    def __str__(self) -> str:
        return f"{self.value} at {self.index}"


@dataclass(frozen=True, slots=True)
class LowRank:
    """`left` has `rank` numbers for each token and head; `right` has `rank · head_dim` for each chunk of so
    many tokens as share an entry of it."""

    left: str
    right: str

    def add_to(self, total: Tensor | None, fields: Fields, head_dim: int, dtype: torch.dtype) -> Tensor:
        left, right = fields[self.left].to(dtype), fields[self.right].to(dtype)
        chunks = right.shape[2]
        right = right.unflatten(-1, (-1, head_dim))
        x = torch.zeros(*left.shape[:-1], head_dim, dtype=dtype, device=left.device)
        parts = x.unflatten(2, (chunks, -1))
        for i in range(left.shape[-1]):  # one by one: a product would add in an order of its own
            parts += left[..., i : i + 1].unflatten(2, (chunks, -1)) * right[:, :, :, i : i + 1]
        return x if total is None else total.add_(x)

    def __str__(self) -> str:
        return f"{self.left} · {self.right}"


Term = Codes | Sparse | LowRank


def decoded(terms: tuple[Term, ...], fields: Fields, head_dim: int, dtype: torch.dtype) -> Tensor:
    """The sum of the terms, `[N, H, T, head_dim]` in `dtype`."""
    total: Tensor | None = None
    for term in terms:
        total = term.add_to(total, fields, head_dim, dtype)
    assert total is not None
    return total


def formula(terms: tuple[Term, ...]) -> str:
    """As a card shows it."""
    return " + ".join(map(str, terms))
