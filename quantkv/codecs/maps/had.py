"""`had`: a Hadamard rotation of each head's channels, which spreads what stands out in one of them over all.

QuaRot (Ashkboos et al. 2024) rotates keys after RoPE and values like this. The matrix is Sylvester's, over
the root of its size and without random signs. Where head_dim is no power of two, runs of the largest power of
two that divides it are rotated apart: 5 runs of 16 at head_dim 80. No bits.
"""

from __future__ import annotations

from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place
from quantkv.codecs.steps import Hadamard, Step
from quantkv.errors import QuantKVError


class Had(Map):
    def step(self, place: Place) -> Step | None:
        block = place.head_dim & -place.head_dim
        if block == 1:
            raise QuantKVError(
                f"had rotates runs of 2, 4, 8, … channels, and head_dim {place.head_dim} is odd; "
                "leave had out, or give rot a matrix"
            )
        return Hadamard(block)
