"""The exact tokens of one tensor: a ring of the newest ones, and the sinks of each row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quantkv.store.pool import allocate

if TYPE_CHECKING:
    from typing_extensions import Self


class ExactTokens:
    """Exact tokens of some rows, in a buffer `[rows, heads, capacity, head_dim]` that is written in place."""

    def __init__(
        self, shape: tuple[int, int, int], capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shape` is (rows, heads, head_dim)."""
        rows, heads, head_dim = shape
        self.buffer = allocate((rows, heads, capacity, head_dim), dtype, device)
        self.capacity = capacity

    def select(self, rows: Sequence[int]) -> None:
        with torch.inference_mode(False):
            self.buffer = self.buffer[list(rows)]

    def clone(self) -> Self:
        return copy.copy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = state["buffer"]
        self.__dict__ |= state | {"buffer": allocate(held.shape, held.dtype, held.device).copy_(held)}


class Ring(ExactTokens):
    """The newest tokens of all rows: position `j` lies at slot `j mod capacity`, and appending moves none."""

    def write(self, start: int, x: Tensor, rows: Sequence[int] | None = None) -> None:
        """Put `[R, H, T, D]` at positions from `start` on; T is at most the capacity."""
        target = self.buffer if rows is None else self.buffer[list(rows)]
        pieces = self._pieces(start, start + x.shape[-2])
        parts = (x,) if len(pieces) == 1 else x.split([count for _, count in pieces], -2)
        for (slot, count), part in zip(pieces, parts, strict=True):
            target.narrow(-2, slot, count).copy_(part)
        if rows is not None:
            self.buffer[list(rows)] = target

    def read(self, start: int, stop: int) -> Tensor:
        """Positions `[start, stop)` of all rows: a view where they do not wrap."""
        pieces = [self.buffer[:, :, slot : slot + count] for slot, count in self._pieces(start, stop)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -2)

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(slot, count) of the at most two runs that hold `[start, stop)`."""
        slot, count = start % self.capacity, stop - start
        first = min(count, self.capacity - slot)
        return [(slot, first)] if first == count else [(slot, first), (0, count - first)]


class Sinks(ExactTokens):
    """The first real tokens of each row, exact for good."""

    def write(self, start: int, x: Tensor, pads: Sequence[int]) -> None:
        """Keep what of `[B, H, T, D]`, whose first token is at position `start`, belongs to the sinks."""
        for row, pad in enumerate(pads):
            low, high = max(pad, start), min(pad + self.capacity, start + x.shape[-2])
            if low < high:
                self.buffer[row, :, low - pad : high - pad] = x[row, :, low - start : high - start]
