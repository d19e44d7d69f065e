"""What a map is: a word, the step that it takes before a codec, and the numbers that it fits or measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from quantkv.codecs.fields import Field
from quantkv.codecs.place import Place, Tokens, Which
from quantkv.codecs.steps import Step


class Map(ABC):
    """Stateless; one instance serves every layer. A chain applies in order and is undone in reverse."""

    tensors: ClassVar[tuple[Which, ...]] = ("key", "value")
    """Of what it is a map. Said once for keys and values, one for keys alone goes to the keys."""
    version: ClassVar[int] = 1
    """Goes up when it stores other codes for the same input, so that its formats are measured again."""
    fits: ClassVar[bool] = False
    """Whether it needs the state of each row, fitted on the row's first tokens after the sinks."""

    positions: ClassVar[bool] = False
    """Whether it needs to know the positions of tokens, and how keys are turned by them."""

    unit: ClassVar[bool] = False
    """Whether it makes numbers of unit size, as codecs with tables want them."""

    @abstractmethod
    def step(self, place: Place) -> Step | None:
        """What it does at a place; None where it does nothing there. QuantKVError where it cannot."""

    def fields(self, place: Place) -> tuple[Field, ...]:
        """What it stores beside the codec's fields, for each token."""
        return ()

    def fit(self, x: Tensor) -> dict[str, Tensor]:
        """The state of rows, `[N, H, D]` each, from their first tokens `[N, H, W, D]` in float64."""
        return {}

    def measure(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        """Its fields of tokens `[N, H, T, D]`, as earlier maps leave them."""
        return {}
