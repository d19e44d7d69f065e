"""What a codec declares fits together, or is refused by name where the method is put at a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from quantkv import QuantKVError
from quantkv.codecs import (
    Affine,
    Codec,
    Codes,
    Field,
    Float8,
    LowRank,
    Place,
    Plain,
    Scale,
    Sharing,
    Sparse,
    Stored,
    Table,
    Tokens,
)
from quantkv.codecs.affine import Affine as Integers
from quantkv.codecs.terms import Term

HEADS, DIM = 2, 8
PLACE = Place("key", HEADS, DIM)
CODES = Field("codes", torch.uint8, HEADS, 1, DIM, 4, tiled=True)
SCALE = Field("scale", torch.float16, HEADS, 1, 1)
TOKEN = Scale("scale", Sharing())


@dataclass
class Declared(Codec):
    """Says what it is told to; encodes nothing."""

    said_fields: tuple[Field, ...]
    said_terms: tuple[Term, ...] = field(default=())
    group_tokens: int = 16

    def fields(self, place: Place) -> tuple[Field, ...]:
        return self.said_fields

    def terms(self, place: Place) -> tuple[Term, ...]:
        return self.said_terms

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        return {}


def plain(name: str, heads: int, tokens: int, width: int, dtype: torch.dtype = torch.float16) -> Field:
    return Field(name, dtype, heads, tokens, width)


INDEX = plain("index", HEADS, 1, 3, torch.uint8)
VALUE = plain("value", HEADS, 1, 3)
LEFT, RIGHT = plain("left", HEADS, 1, 2), plain("right", HEADS, 16, 2 * DIM)
FITS: dict[str, tuple[tuple[Field, ...], tuple[Term, ...]]] = {
    "codes with a scale": ((CODES, SCALE), (Codes("codes", Affine(), (TOKEN,)),)),
    "a zero alone": ((CODES, SCALE), (Codes("codes", Affine(), zero=TOKEN),)),
    "a product of scales": (
        (CODES, SCALE, plain("all", 1, 1, 1), plain("group", HEADS, 4, DIM)),
        (
            Codes(
                "codes",
                Affine(),
                (TOKEN, Scale("all", Sharing(all_heads=True)), Scale("group", Sharing(4, 1))),
            ),
        ),
    ),
    "a table": ((CODES,), (Codes("codes", Table((0.0,) * 16)),)),
    "two ranges of channels": (
        (
            Field("low", torch.uint8, HEADS, 1, 3, 2, tiled=True),
            Field("high", torch.float16, HEADS, 1, 5, tiled=True),
        ),
        (Codes("low", Affine()), Codes("high", Plain(), first=3)),
    ),
    "sparse": ((INDEX, VALUE), (Sparse("index", "value"),)),
    "low rank": ((LEFT, RIGHT), (LowRank("left", "right"),)),
}
NARROW = Field("codes", torch.uint8, HEADS, 1, 6, 4, tiled=True)
ONE_HEAD = Field("codes", torch.uint8, 1, 1, DIM, 4, tiled=True)
UNTILED = Field("codes", torch.uint8, HEADS, 1, DIM, 4)
REFUSED: dict[str, tuple[tuple[Field, ...], tuple[Term, ...], str]] = {
    "two of one name": ((CODES, CODES), (Codes("codes", Affine()),), "two fields of one name: codes, codes"),
    "no term": ((CODES,), (), r"terms are a tuple of Codes, Sparse and LowRank, not \(\)"),
    "terms without a comma": ((CODES,), Codes("codes", Affine()), "terms are a tuple of Codes"),  # type: ignore[dict-item]
    "no such codes": ((SCALE,), (Codes("codes", Affine()),), "reads a field 'codes'; declared: scale"),
    "no such scale": ((CODES,), (Codes("codes", Affine(), (TOKEN,)),), "reads a field 'scale'"),
    "no such zero": ((CODES,), (Codes("codes", Affine(), zero=TOKEN),), "reads a field 'scale'"),
    "no such index": ((VALUE,), (Sparse("index", "value"),), "reads a field 'index'"),
    "no such value": ((INDEX,), (Sparse("index", "value"),), "reads a field 'value'"),
    "no such left": ((RIGHT,), (LowRank("left", "right"),), "reads a field 'left'"),
    "no such right": ((LEFT,), (LowRank("left", "right"),), "reads a field 'right'"),
    "a scale of more tokens than are encoded together": (
        (CODES, plain("scale", HEADS, 32, 1)),
        (Codes("codes", Affine(), (Scale("scale", Sharing(tokens=32)),)),),
        "32 tokens share an entry of 'scale', but 16 are encoded together",
    ),
    "8-bit floats of 4 bits": ((CODES,), (Codes("codes", Float8("e4m3")),), "'codes' as uint8 codes of 8"),
    "8-bit floats of 16 bits": (
        (Field("codes", torch.float16, HEADS, 1, DIM, tiled=True),),
        (Codes("codes", Float8("e4m3")),),
        "'codes' as uint8 codes of 8",
    ),
    "indices that are no bytes": (
        (plain("index", HEADS, 1, 3, torch.int16), VALUE),
        (Sparse("index", "value"),),
        "'index' torch.int16",
    ),
    "codes that all heads share": ((ONE_HEAD,), (Codes("codes", Affine()),), "needs 'codes' tiled, one code"),
    "codes that are not tiled": ((UNTILED,), (Codes("codes", Affine()),), "needs 'codes' tiled, one code"),
    "beyond the last channel": ((NARROW,), (Codes("codes", Affine(), first=3),), "beyond head_dim 8"),
    "before the first channel": ((NARROW,), (Codes("codes", Affine(), first=-1),), "beyond head_dim 8"),
    "a short table": ((CODES,), (Codes("codes", Table((0.0, 1.0))),), "2 numbers for codes of 4 bits"),
    "a table of floats": (
        (plain("codes", HEADS, 1, DIM, torch.float16),),
        (Codes("codes", Table((0.0,) * 16)),),
        "needs 'codes' tiled",
    ),
    "a scale of every channel": (
        (CODES, plain("scale", HEADS, 1, DIM)),
        (Codes("codes", Affine(), (TOKEN,)),),
        r"'scale' is shared as .* \(2, 1, 1\), but its field is \(2, 8, 1\)",
    ),
    "a scale of all heads": (
        (CODES, plain("scale", 1, 1, 1)),
        (Codes("codes", Affine(), (TOKEN,)),),
        r"\(2, 1, 1\), but its field is \(1, 1, 1\)",
    ),
    "a zero of a group": (
        (CODES, SCALE, plain("zero", HEADS, 4, 1)),
        (Codes("codes", Affine(), (TOKEN,), Scale("zero", Sharing())),),
        r"\(2, 1, 1\), but its field is \(2, 1, 4\)",
    ),
    "a group that does not divide the channels": (
        (NARROW, plain("scale", HEADS, 1, 1)),
        (Codes("codes", Affine(), (Scale("scale", Sharing(channels=4)),)),),
        "a group of 4 channels does not divide head_dim 6",
    ),
    "fewer indices than values": (
        (plain("index", HEADS, 1, 2, torch.uint8), VALUE),
        (Sparse("index", "value"),),
        "as many indices as values",
    ),
    "indices of all heads": (
        (plain("index", 1, 1, 3, torch.uint8), VALUE),
        (Sparse("index", "value"),),
        "for each head and token",
    ),
    "values of a group of tokens": (
        (INDEX, plain("value", HEADS, 4, 3)),
        (Sparse("index", "value"),),
        "for each head and token",
    ),
    "a left that tokens share": (
        (plain("left", HEADS, 4, 2), RIGHT),
        (LowRank("left", "right"),),
        "needs 'left' for each head and token",
    ),
    "a right that heads share": (
        (LEFT, plain("right", 1, 16, 2 * DIM)),
        (LowRank("left", "right"),),
        "'right' for each head",
    ),
    "a right of another rank": (
        (LEFT, plain("right", HEADS, 16, 3 * DIM)),
        (LowRank("left", "right"),),
        "needs 2 · 8 numbers in 'right'",
    ),
}


@pytest.mark.parametrize("name", list(FITS))
def test_what_fits_is_taken(name: str) -> None:
    fields, terms = FITS[name]
    method = Stored(Declared(fields, terms), PLACE)
    assert (method.fields, method.terms) == (fields, terms)


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_does_not_fit_is_refused(name: str) -> None:
    fields, terms, message = REFUSED[name]
    with pytest.raises(QuantKVError, match=message):
        Stored(Declared(fields, terms), PLACE)


@pytest.mark.parametrize("bits", [0, 9, 16])
def test_widths_that_cannot_be_packed_are_refused(bits: int) -> None:
    with pytest.raises(
        QuantKVError, match=rf"'c' has {bits} bits of torch.uint8; legal: uint8 codes of 1, 2"
    ):
        Field("c", torch.uint8, HEADS, 1, DIM, bits)


def test_channels_that_a_byte_cannot_name_are_refused() -> None:
    method = Declared((INDEX, VALUE), (Sparse("index", "value"),))
    assert Stored(method, Place("key", HEADS, 256)).terms == method.said_terms
    with pytest.raises(QuantKVError, match="up to 256 by uint8, and head_dim is 257"):
        Stored(method, Place("key", HEADS, 257))


def test_bits_of_floats_and_tiles_that_tokens_share_are_refused() -> None:
    with pytest.raises(QuantKVError, match=r"4 bits of torch.float16; legal: uint8 codes"):
        Field("c", torch.float16, HEADS, 1, DIM, 4)
    with pytest.raises(QuantKVError, match="tiled field 'c' needs elements of its own for each token"):
        Field("c", torch.uint8, HEADS, 2, DIM, 4, tiled=True)


class Made(Integers):
    """int4 whose encoder leaves out, adds or spoils a field."""

    def __init__(self, spoil: Callable[[dict[str, Tensor]], Any]) -> None:
        super().__init__(4, Sharing())
        self.spoil = spoil

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        return self.spoil(super().encode(x, tokens))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made: {"codes": made["codes"]}, "encode made codes; declared: codes, scale, zero"),
        (lambda made: None, "encode made None; declared: codes"),
        (lambda made: made | {"more": made["scale"]}, "encode made codes, scale, zero, more; declared"),
        (lambda made: made | {"codes": made["codes"] + 9}, "made the code 24, beyond the 4 bits of 'codes'"),
        (lambda made: made | {"scale": made["scale"].float()}, r"'scale' as \[2, 2, 8, 1\] of torch.float32"),
        (lambda made: made | {"scale": made["scale"][..., 0]}, r"'scale' as \[2, 2, 8\] of torch.float16"),
    ],
)
def test_what_an_encoder_makes_is_what_is_declared(
    spoil: Callable[[dict[str, Tensor]], Any], words: str
) -> None:
    place = Place("key", 2, 32)
    stored = Stored(Made(spoil), place)
    with pytest.raises(QuantKVError, match=words):
        stored.encode(torch.arange(1024.0).reshape(2, 2, 8, 32), Tokens(place, (0, 0)))
