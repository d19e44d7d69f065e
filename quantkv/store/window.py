"""The exact tokens of one tensor: a ring of the newest ones, and the sinks of each row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor


class Ring:
    """The newest tokens of all rows; position `j` lies at slot `j mod capacity`, so appending never moves
    anything."""

    def __init__(
        self, shape: tuple[int, int, int], capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shape` is (rows, heads, head_dim)."""
        rows, heads, head_dim = shape
        self.capacity = capacity
        self.buffer = torch.empty(rows, heads, capacity, head_dim, dtype=dtype, device=device)

    def write(self, start: int, x: Tensor, rows: Sequence[int] | None = None) -> None:
        """Put `[R, H, T, D]` at positions from `start` on; T is at most the capacity."""
        target = self.buffer if rows is None else self.buffer[list(rows)]
        done = 0
        for slot, count in self._pieces(start, start + x.shape[-2]):
            target[:, :, slot : slot + count] = x[:, :, done : done + count]
            done += count
        if rows is not None:
            self.buffer[list(rows)] = target

    def read(self, start: int, stop: int) -> Tensor:
        """Positions `[start, stop)` of all rows: a view where they do not wrap."""
        pieces = [self.buffer[:, :, slot : slot + count] for slot, count in self._pieces(start, stop)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -2)

    def select(self, rows: Sequence[int]) -> None:
        self.buffer = self.buffer[list(rows)]

    def clone(self) -> Ring:
        return _cloned(self)

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(slot, count) of the at most two runs that hold `[start, stop)`."""
        slot, count = start % self.capacity, stop - start
        first = min(count, self.capacity - slot)
        return [(slot, first)] if first == count else [(slot, first), (0, count - first)]


class Sinks:
    """The first real tokens of each row, exact for good."""

    def __init__(
        self, shape: tuple[int, int, int], count: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, heads, head_dim = shape
        self.count = count
        self.buffer = torch.empty(rows, heads, count, head_dim, dtype=dtype, device=device)

    def write(self, start: int, x: Tensor, pads: Sequence[int]) -> None:
        """Keep what of `[B, H, T, D]`, whose first token is at position `start`, belongs to the sinks."""
        for row, pad in enumerate(pads):
            low, high = max(pad, start), min(pad + self.count, start + x.shape[-2])
            if low < high:
                self.buffer[row, :, low - pad : high - pad] = x[row, :, low - start : high - start]

    def select(self, rows: Sequence[int]) -> None:
        self.buffer = self.buffer[list(rows)]

    def clone(self) -> Sinks:
        return _cloned(self)


Exact = TypeVar("Exact", Ring, Sinks)


def _cloned(exact: Exact) -> Exact:
    other = copy.copy(exact)
    other.buffer = exact.buffer.clone()
    return other
