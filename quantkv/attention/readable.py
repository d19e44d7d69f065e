"""What an engine reads, packed or not."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from quantkv.store.view import SPAN_TOKENS


class Readable(Protocol):
    """`[B, H, stop, D]` in pieces, cut at `edges()`."""

    @property
    def shape(self) -> tuple[int, int, int, int]: ...
    def read(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor: ...
    def edges(self) -> list[int]: ...


class PlainReadable:
    """An ordinary `[B, H, T, D]` tensor behind the engine's reading interface."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return tuple(self._x.shape)  # type: ignore[return-value]

    def read(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        return self._x[:, :, start:stop].to(dtype or self._x.dtype)

    def edges(self) -> list[int]:
        return sorted({*range(0, self._x.shape[2], SPAN_TOKENS), self._x.shape[2]})
