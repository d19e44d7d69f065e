"""How much of what scored tokens read was packed, task by task, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quantkv.decode_exact.schedule import BatchRows, Call, Schedule
from quantkv.measurements.checks import LOW_PACKED_READ
from quantkv.measurements.packed_reads import attended_layers, reads, total

if TYPE_CHECKING:
    from quantkv.cache.quantized import QuantizedCache


@dataclass
class Reads:
    """(query, key) pairs attended to for scored tokens, and how many of them were packed."""

    pairs: int = 0
    packed: int = 0

    def add(self, pairs: int, packed: int) -> None:
        self.pairs += pairs
        self.packed += packed

    @property
    def packed_fraction(self) -> float | None:
        """None as long as nothing was read."""
        return self.packed / self.pairs if self.pairs else None

    @property
    def complaint(self) -> str | None:
        """What is wrong with a score from these reads, if anything."""
        share = self.packed_fraction
        if share is None or share >= LOW_PACKED_READ:
            return None
        if not self.packed:
            return "packed_read_fraction is 0: no scored token read a packed key, the score says nothing"
        return (
            f"packed_read_fraction is {share:.2f}, below {LOW_PACKED_READ}: much of what was read was exact"
        )


def generated_reads(cache: QuantizedCache, begins: Tensor, prompt: int, ends: Tensor) -> tuple[int, int]:
    """(pairs, packed) of generating: rows padded on the left up to `begins` `[B]`, a prompt of `prompt`
    positions in one exact call, then a query per token until `ends` `[B]`. The prompt's last query, which
    predicts the first token, counts."""
    schedule = Schedule(torch.tensor([prompt]), count_from=torch.tensor([prompt - 1]))
    call = Call(schedule, BatchRows(begins, ends), 0, max(prompt, int(ends.max())))
    return total(reads(layer, call) for layer in attended_layers(cache))
