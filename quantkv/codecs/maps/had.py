"""`had`: a Hadamard rotation of each head's channels, which spreads what stands out in one of them over all
(QuaRot, Ashkboos et al. 2024, rotate keys after RoPE and values like this).

Where head_dim is no power of two, runs of the largest power of two that divides it are rotated apart.
"""

from __future__ import annotations

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place
from quantkv.codecs.steps import Hadamard, Step


class Had(Map):
    def step(self, place: Place) -> Step | None:
        block = place.head_dim & -place.head_dim
        return Hadamard(block) if block > 1 else None
