"""`ctr`: each row's keys less their mean, per head and channel, over the row's first packed tokens.

A bias of key channels moves all scores of a query alike, so softmax takes it away; a scale that is shared
with such a channel does not. Where keys are turned (RoPE) the biased channels turn with them, and the mean of
some tokens is not that of later ones: `unrope.ctr` is for such keys.
"""

from __future__ import annotations

from torch import Tensor

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place
from quantkv.codecs.steps import Shift, Step


class Ctr(Map):
    fits = True

    def step(self, place: Place) -> Step | None:
        return Shift("mean")

    def fit(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.mean(-2)}
