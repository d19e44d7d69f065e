"""What a store knows of each row beside its tokens: where it begins, and what its method fitted on it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quantkv.codecs import Stored, Tokens
from quantkv.store.pool import allocate

if TYPE_CHECKING:
    from typing_extensions import Self


class RowState:
    """`numbers` `[rows, ...]` by name, in float32; `first` the position of each row's first packed token."""

    def __init__(self, stored: Stored, rows: int, device: torch.device) -> None:
        self.stored = stored
        shapes = stored.state_shapes.items()
        self.numbers = {
            name: allocate((rows, *shape), torch.float32, device).zero_() for name, shape in shapes
        }
        self.fitted = [not shapes] * rows
        self.first = [0] * rows

    @property
    def nbytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in self.numbers.values())

    def fit(self, rows: Sequence[int], x: Tensor) -> None:
        """Fit rows on their first tokens `[len(rows), H, W, D]`."""
        state = self.stored.fit(x, [self.first[row] for row in rows])
        for name, numbers in state.items():
            self.numbers[name][list(rows)] = numbers.to(self.numbers[name].device)
        for row in rows:
            self.fitted[row] = True

    def forget(self, row: int) -> None:
        """The row has lost tokens that its state was fitted on: it is fitted anew."""
        self.fitted[row] = not self.numbers

    def tokens(self, rows: Sequence[int], starts: Sequence[int]) -> Tokens:
        """Tokens of `rows` (perhaps one several times), each from packed token `starts` on."""
        state = {name: x[list(rows)] for name, x in self.numbers.items()}
        first = [self.first[row] + start for row, start in zip(rows, starts, strict=True)]
        return Tokens(self.stored.place, first, state)

    def select(self, rows: Sequence[int]) -> None:
        with torch.inference_mode(False):
            self.numbers = {name: x[list(rows)] for name, x in self.numbers.items()}
        self.fitted = [self.fitted[row] for row in rows]
        self.first = [self.first[row] for row in rows]

    def clone(self) -> Self:
        other = copy.copy(self)
        other.select(range(len(self.first)))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()
