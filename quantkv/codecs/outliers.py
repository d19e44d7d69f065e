"""3-bit affine integers beside a few numbers that are kept apart: `x ≈ scale · code + zero`, one scale and
zero per token and head, and ⌈D/100⌉ slots of a float16 value and a uint8 index, which are added.

KVQuant (Hooper et al. 2024) and GEAR (Kang et al. 2024) keep the 1 or 2 percent of a vector that stand out
most, so that the range of the others is short. Here each token and head has the same number of slots, so that
a page has one size; they go to the numbers without which the range of the rest is shortest, which are also
the ones farthest from its middle. Among equal numbers the one of the lowest channel goes, and where two
choices leave the same range, the one with more of the highest numbers.

Scale and zero hold for the rest and are rounded outward, as those of `int3-head`. A number in a slot has a
code too, and its slot what is left of it after that, rounded to nearest float16; what lies beyond float16 is
kept as its end. Effective bits: 3 + (32 + 24 ⌈D/100⌉) / D: 3.875 at D = 64, 3.625 at 128, 3.40625 at 256.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv.codecs import terms
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Field, Sharing, compute_dtype
from quantkv.codecs.place import Place, Tokens
from quantkv.codecs.rounding import round_down, round_nearest, round_up_positive
from quantkv.errors import QuantKVError

BITS = 3
CHANNELS_PER_SLOT = 100
WIDEST = 256
"""Channels that a uint8 can name."""


class Outliers(Codec):
    def fields(self, place: Place) -> tuple[Field, ...]:
        if place.head_dim > WIDEST:
            raise QuantKVError(
                f"out3 names channels by 8 bits: the {place} have {place.head_dim}, and {WIDEST} is the most"
            )
        slots = _slots(place.head_dim)
        return (
            *Sharing().fields(place, BITS, torch.float16, "scale", "zero"),
            Field("index", torch.uint8, place.num_heads, 1, slots),
            Field("value", torch.float16, place.num_heads, 1, slots),
        )

    def terms(self, place: Place) -> tuple[terms.Term, ...]:
        scale, zero = (terms.Scale(name, Sharing()) for name in ("scale", "zero"))
        return terms.Codes("codes", terms.Affine(), (scale,), zero), terms.Sparse("index", "value")

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        x = x.to(compute_dtype(x.dtype))
        index, low, high = _set_apart(x, _slots(x.shape[-1]))
        zero = round_down(low, torch.float16)
        scale = round_up_positive((high - zero.to(x.dtype)) / (2**BITS - 1), torch.float16)
        codes = x.sub(zero.to(x.dtype)).div_(scale.to(x.dtype)).round_().clamp_(0, 2**BITS - 1)
        left = x - (codes * scale.to(x.dtype) + zero.to(x.dtype))
        value = round_nearest(left.gather(-1, index), torch.float16)
        return {
            "codes": codes.to(torch.uint8),
            "scale": scale,
            "zero": zero,
            "index": index.to(torch.uint8),
            "value": value,
        }


def _slots(head_dim: int) -> int:
    return -(-head_dim // CHANNELS_PER_SLOT)


def _set_apart(x: Tensor, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """The channels `[…, slots]` without which the range of the others is shortest, and the lowest and the
    highest `[…, 1]` of these: so many of the lowest go, the rest of the slots to the highest."""
    rising, up = x.sort(dim=-1, stable=True)
    down = x.sort(dim=-1, stable=True, descending=True).indices
    last = x.shape[-1] - 1 - slots
    index, low, high = down[..., :slots], rising[..., :1], rising[..., last : last + 1]
    for lowest in range(1, slots + 1):
        own_low, own_high = (rising[..., at : at + 1] for at in (lowest, last + lowest))
        own_index = torch.cat([up[..., :lowest], down[..., : slots - lowest]], -1)
        shorter = own_high - own_low < high - low
        index = torch.where(shorter, own_index, index)
        low, high = torch.where(shorter, own_low, low), torch.where(shorter, own_high, high)
    return index, low, high
