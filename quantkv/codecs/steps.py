"""Reversible steps between a tensor and what a codec is given: the closed set that engines know.

A step is applied before a codec encodes and undone after it decodes. How it folds says what attention may do
instead of undoing it token by token: `linear` steps go into the query and the output, a `shift` into a bias
of the scores and a sum of the output, a `scale` into the token's own factor; `no` means that every tile is
undone. With `q · undo(y)` a score, the query that meets y itself is `q H` (Hadamard), `q R` (Matrix) and
`q λ` (Stretch).

Every number is made by additions, multiplications and divisions of whole tensors, one after the other, each
rounded by itself. So it depends neither on how many tokens or rows come at once, nor on how they lie in
memory; sums inside one operation (products of matrices, means) would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quantkv.codecs.place import Rope, Tokens
from quantkv.codecs.terms import Fields

Folds = Literal["linear", "shift", "scale", "no"]


@dataclass(frozen=True, slots=True)
class Hadamard:
    """Runs of `block` channels, a power of two, times the Sylvester Hadamard matrix over the root of `block`;
    its own inverse."""

    block: int
    folds: ClassVar[Folds] = "linear"

    def apply(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return butterflies(x, self.block)

    undo = apply


def butterflies(x: Tensor, block: int) -> Tensor:
    """`x @ H / √block` by additions alone, so that no element depends on how many others there are."""
    y = x.unflatten(-1, (-1, block))
    for _ in range(block.bit_length() - 1):  # sums of neighbours to the front, differences behind them
        first, second = y[..., ::2], y[..., 1::2]
        y = torch.cat([first + second, first - second], -1)
    return y.flatten(-2) * (1 / math.sqrt(block))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Each head's channels times its own orthogonal matrix, `place.constants[name]` `[H, D, D]`: `x @ R`."""

    name: str
    folds: ClassVar[Folds] = "linear"

    def apply(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return by_columns(x, self.of(x, tokens))

    def undo(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return by_columns(x, self.of(x, tokens).transpose(-1, -2))

    def of(self, x: Tensor, tokens: Tokens) -> Tensor:
        return tokens.place.constants[self.name].to(x.device, x.dtype)


def by_columns(x: Tensor, matrix: Tensor) -> Tensor:
    """`x @ matrix`, `[N, H, T, D]` by `[H, D, D]`, row of the matrix after row: a product would add in an
    order that depends on how many tokens there are."""
    total = torch.zeros_like(x)
    for c in range(x.shape[-1]):
        total += x[..., c : c + 1] * matrix[:, None, c]
    return total


@dataclass(frozen=True, slots=True)
class Shift:
    """`state[name]` `[N, H, D]`, of each row, taken away."""

    name: str
    folds: ClassVar[Folds] = "shift"

    def apply(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return x - row_state(x, tokens, self.name)

    def undo(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return x + row_state(x, tokens, self.name)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Divided by `state[name]` `[N, H, D]`, of each row."""

    name: str
    folds: ClassVar[Folds] = "linear"

    def apply(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return x / row_state(x, tokens, self.name)

    def undo(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return x * row_state(x, tokens, self.name)


def row_state(x: Tensor, tokens: Tokens, name: str) -> Tensor:
    """`[N, H, 1, D]`, to go with tokens `[N, H, T, D]`."""
    return tokens.state[name].to(x.device, x.dtype)[:, :, None]


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Divided by the number of each token in field `name`, `[N, H or 1, T, 1]`."""

    name: str
    folds: ClassVar[Folds] = "scale"

    def apply(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return x / fields[self.name].to(x.dtype)

    def undo(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return x * fields[self.name].to(x.dtype)


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotary embedding taken away: each pair of channels turned back by its token's position."""

    rope: Rope
    folds: ClassVar[Folds] = "no"

    def apply(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return self._turned(x, tokens, -1.0)

    def undo(self, x: Tensor, tokens: Tokens, fields: Fields) -> Tensor:
        return self._turned(x, tokens, 1.0)

    def _turned(self, x: Tensor, tokens: Tokens, sign: float) -> Tensor:
        assert len(tokens.first) == len(x), "every row has a position"
        cos, sin = (t.to(x.device, x.dtype) for t in angles(self.rope, tuple(tokens.first), x.shape[-2]))
        first, second = self._pairs(x)
        sin = sin * sign
        both = first * cos - second * sin, second * cos + first * sin
        turned = torch.stack(both, -1).flatten(-2) if self.rope.interleaved else torch.cat(both, -1)
        return torch.cat([turned, x[..., turned.shape[-1] :]], -1)

    def _pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the second channels of the pairs that turn."""
        half = len(self.rope.frequencies)
        if self.rope.interleaved:
            return x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]
        return x[..., :half], x[..., half : 2 * half]


_BLOCK = 1024


def angles(rope: Rope, first: tuple[int, ...], length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, `[N, 1, length, pairs]` in float64, of `length` positions from each of `first` on."""
    rows = [_positions(rope, at, length) for at in first]
    cos, sin = (torch.stack(parts)[:, None] for parts in zip(*rows, strict=True))
    return cos, sin


def _positions(rope: Rope, first: int, length: int) -> tuple[Tensor, Tensor]:
    low, high = first // _BLOCK, (first + max(length, 1) - 1) // _BLOCK
    blocks = [_angle_block(rope, number) for number in range(low, high + 1)]
    start = first - low * _BLOCK
    cos, sin = (torch.cat(parts)[start : start + length] for parts in zip(*blocks, strict=True))
    return cos, sin


@lru_cache(maxsize=128)
def _angle_block(rope: Rope, number: int) -> tuple[Tensor, Tensor]:
    """Always as many at a time, because a vector's end may be computed by other instructions."""
    positions = torch.arange(number * _BLOCK, (number + 1) * _BLOCK, dtype=torch.float64)
    angle = positions[:, None] * torch.tensor(rope.frequencies, dtype=torch.float64)
    return angle.cos(), angle.sin()


Step = Hadamard | Matrix | Shift | Stretch | TokenScale | Turn


def fold(steps: tuple[Step, ...]) -> bool:
    """Whether attention can read tokens without undoing any step: each folds, and no shift is applied after
    a token's own scale (which, undone later, would multiply it by another number for each token)."""
    kinds = [step.folds for step in steps]
    scaled = kinds.index("scale") if "scale" in kinds else len(kinds)
    return "no" not in kinds and "shift" not in kinds[scaled + 1 :]
