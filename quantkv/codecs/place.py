"""Where a method stands, and what tokens bring with them.

A place is known before any data: which tensor of which layer, its shape, how its keys are turned, and
constants. Tokens bring their positions and the state of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Which = Literal["key", "value"]


@dataclass(frozen=True, slots=True)
class Rope:
    """How a layer turns its keys (RoPE, Su et al. 2021): channel pair `i` at position `p` by the angle
    `p · frequencies[i]`. The turned channels are the first `2 · len(frequencies)` of a head: pair `i` is
    channels `i` and `i + len(frequencies)`, or `2i` and `2i + 1` where `interleaved`."""

    frequencies: tuple[float, ...]
    interleaved: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One tensor of one layer: `[B, num_heads, T, head_dim]` of `dtype`. `rope` is None for values and where
    keys are not turned; `rope_unknown` says why nobody knows how they are, and then methods that need to know
    are refused. `constants` hold what a method was calibrated with, by name."""

    tensor: Which
    num_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    layer: int = 0
    rope: Rope | None = None
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    rope_unknown: str = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> Place:
        return self  # nothing in it changes, and caches share constants

    def __str__(self) -> str:
        return f"{self.tensor}s of layer {self.layer}"


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Neighbouring tokens of some rows of a place. `first` has the position of each row's first one, counted
    from the row's first real token; `state` what was fitted on each row, `[N, H, …]`, by name."""

    place: Place
    first: Sequence[int] = ()
    state: Mapping[str, Tensor] = field(default_factory=dict)
