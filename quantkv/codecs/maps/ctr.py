"""`ctr`: keys less their mean, of each row, head and channel, over the row's first packed tokens.

A shift that all keys share moves all scores of a query alike, so softmax takes it away; but a scale that is
shared with such channels is wasted on it (the first layers of Qwen2.5 have large key biases). KIVI (Liu et
al. 2024) lets a zero per channel and group absorb it; here it is taken away once, and any codec may follow.
Where keys are turned (RoPE) the biased channels turn with them, and the mean of some tokens is not that of
later ones: `unrope.ctr` is for such keys. Row state: 32 bits for each head and channel.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place, Which
from quantkv.codecs.steps import Shift, Step


class Ctr(Map):
    tensors: ClassVar[tuple[Which, ...]] = ("key",)
    fits = True

    def step(self, place: Place) -> Step | None:
        return Shift("mean")

    def fit(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.mean(-2)}
