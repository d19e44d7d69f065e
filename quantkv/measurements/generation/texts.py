"""Comparing generated texts: where two of them part, how many tokens they share, how much one repeats."""

from __future__ import annotations

from torch import Tensor

REPEATED = 4
"""Tokens of a run that counts as repeated when it occurs again."""


def first_divergence(text: Tensor, reference: Tensor) -> int | None:
    """The first position where two texts `[N]` differ; None where they are equal."""
    unequal = (text != reference).nonzero()
    return int(unequal[0]) if len(unequal) else None


def equal_share(text: Tensor, reference: Tensor) -> float:
    """The share of positions with the same token."""
    return float((text == reference).double().mean())


def repeated_share(text: Tensor, size: int = REPEATED) -> float:
    """The share of runs of `size` tokens that occurred before in the text `[N]`: 0 where all are new."""
    runs = [tuple(run.tolist()) for run in text.unfold(0, size, 1)] if len(text) >= size else []
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
