"""What attention takes beside queries: keys and values, packed or not, read in pieces, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quantkv.store.view import SPAN_TOKENS


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """`mask` `[B|1, 1|Hq, Q|1, T]` is bool (True = attend) or additive; `causal` lets query i of Q see keys
    up to `T − Q + i`. Scores are multiplied by `scaling` (None: one over the root of the width) and kept
    below `softcap` by tanh; `sink_logits` `[Hq]` join the softmax without a value."""

    mask: Tensor | None = None
    causal: bool = False
    scaling: float | None = None
    softcap: float | None = None
    sink_logits: Tensor | None = None

    def scale(self, width: int) -> float:
        """What scores of queries and keys of so many channels are multiplied by."""
        return width**-0.5 if self.scaling is None else self.scaling


PLAIN = AttentionOptions()
"""Every query sees every key."""


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
