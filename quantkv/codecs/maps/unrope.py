"""`unrope`: keys without their rotary embedding, which comes back from their positions.

Before RoPE (Su et al. 2021) a key's channels have means and widths of their own, which turning mixes: KVQuant
(Hooper et al. 2024) and RotateKV (Su et al. 2025) quantize keys there. Here they are turned back as they are
packed, by one fixed table of frequencies, and turned again where attention reads them. Keys that are not
turned stay as they are. No bits: a position is a token's place in its row.
"""

from __future__ import annotations

from typing import ClassVar

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place, Which
from quantkv.codecs.steps import Step, Turn
from quantkv.errors import QuantKVError, UnsupportedError


class Unrope(Map):
    tensors: ClassVar[tuple[Which, ...]] = ("key",)
    positions = True

    def step(self, place: Place) -> Step | None:
        if place.rope_unknown:
            raise UnsupportedError(f"unrope cannot turn back the {place}: {place.rope_unknown}")
        if place.rope is None:
            return None
        width = 2 * len(place.rope.frequencies)
        if width > place.head_dim:
            raise QuantKVError(f"the {place} have {place.head_dim} channels, of which {width} cannot turn")
        return Turn(place.rope)
