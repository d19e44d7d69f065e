"""Methods made for tests of engines: codecs of any terms with random numbers, behind any chain of maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quantkv.codecs import Affine, Codes, Field, LowRank, Plain, Rope, Scale, Sharing, Sparse, Stored, Table
from quantkv.codecs.base import Codec
from quantkv.codecs.maps.ctr import Ctr
from quantkv.codecs.maps.had import Had
from quantkv.codecs.maps.map import Map
from quantkv.codecs.maps.norm import Norm, NormAll
from quantkv.codecs.maps.rot import Rot
from quantkv.codecs.maps.smooth import Smooth
from quantkv.codecs.maps.unrope import Unrope
from quantkv.codecs.place import Place, Tokens, Which
from quantkv.codecs.terms import Term

Declared = tuple[list[Field], list[Term]]
FLOAT16, FLOAT32 = torch.float16, torch.float32


class Made(Codec):
    """Stores random numbers of its fields, whatever it is given."""

    group_tokens = 32

    def __init__(self, declare: Callable[[int, int], Declared]) -> None:
        self.declare = declare

    def fields(self, place: Place) -> tuple[Field, ...]:
        return tuple(self.declare(place.num_heads, place.head_dim)[0])

    def terms(self, place: Place) -> tuple[Term, ...]:
        return tuple(self.declare(place.num_heads, place.head_dim)[1])

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        place, (n, _, length, dim) = tokens.place, x.shape
        return {
            f.name: _random(f, (n, f.heads, length // f.tokens, f.width), dim) for f in self.fields(place)
        }


def _random(field: Field, shape: tuple[int, ...], dim: int) -> Tensor:
    if field.bits is not None:
        return torch.randint(2**field.bits, shape, dtype=torch.uint8)
    if field.dtype == torch.uint8:
        return torch.randint(dim, shape, dtype=torch.uint8)
    if field.name.startswith("e8m0"):
        return torch.randint(124, 128, shape, dtype=torch.uint8).view(field.dtype)
    return (torch.rand(shape) * 0.5 + 0.1).to(field.dtype)


def codes(name: str, heads: int, width: int, bits: int) -> Field:
    return Field(name, torch.uint8, heads, 1, width, bits, tiled=True)


def shared(name: str, dtype: torch.dtype, heads: int, width: int, sharing: Sharing) -> Field:
    many, groups = sharing.entry_shape(heads, width)
    return Field(name, dtype, many, sharing.tokens, groups)


TOKEN, CHUNK, GROUPS = Sharing(), Sharing(32, 1), Sharing(1, 8)


def affine(heads: int, dim: int) -> Declared:
    zeros = [shared(name, FLOAT16, heads, dim, TOKEN) for name in ("scale", "zero")]
    term = Codes("codes", Affine(), (Scale("scale", TOKEN, 0.1),), Scale("zero", TOKEN))
    return [codes("codes", heads, dim, 4), *zeros], [term]


def channels(heads: int, dim: int) -> Declared:
    zeros = [shared(name, FLOAT16, heads, dim, CHUNK) for name in ("scale", "zero")]
    return [codes("codes", heads, dim, 4), *zeros], [
        Codes("codes", Affine(), (Scale("scale", CHUNK),), Scale("zero", CHUNK))
    ]


def table(heads: int, dim: int) -> Declared:
    return [codes("codes", heads, dim, 3)], [Codes("codes", Table(tuple(i * i / 40 - 0.6 for i in range(8))))]


def product(heads: int, dim: int) -> Declared:
    """Two scales multiplied, the one finer along channels, the other of all heads, with a zero of its own."""
    whole, fields = Sharing(32, all_heads=True), [codes("codes", heads, dim, 4)]
    fields += [
        shared("fine", torch.float8_e4m3fn, heads, dim, GROUPS),
        shared("whole", FLOAT32, heads, dim, whole),
    ]
    fields += [shared("zero", torch.bfloat16, heads, dim, CHUNK)]
    scales = (Scale("fine", GROUPS), Scale("whole", whole, 0.5))
    return fields, [Codes("codes", Affine(8.0), scales, Scale("zero", CHUNK))]


def counted(heads: int, dim: int) -> Declared:
    """A scale in codes of 6 bits that count in a float."""
    wide = Sharing(32, 8)
    fields = [codes("codes", heads, dim, 8), Field("fine", torch.uint8, heads, 1, dim // 8, 6)]
    fields += [shared("wide", FLOAT16, heads, dim, wide)]
    return fields, [Codes("codes", Affine(128.0), (Scale("fine", GROUPS, 1e-4), Scale("wide", wide)))]


def parts(heads: int, dim: int) -> Declared:
    return _parts(heads, dim, 16)


def ragged(heads: int, dim: int) -> Declared:
    return _parts(heads, dim, 24)


def _parts(heads: int, dim: int, first: int) -> Declared:
    fields = [codes("low", heads, first, 2), codes("high", heads, dim - first, 5)]
    fields += [shared("a", FLOAT16, heads, first, TOKEN), shared("b", FLOAT16, heads, dim - first, CHUNK)]
    return fields, [
        Codes("low", Affine(2.0), (Scale("a", TOKEN),)),
        Codes("high", Affine(16.0), (Scale("b", CHUNK, 0.1),), first=first),
    ]


def residual(heads: int, dim: int) -> Declared:
    fields = [codes("base", heads, dim, 2), Field("rest", FLOAT16, heads, 1, dim, tiled=True)]
    fields += [shared("scale", FLOAT16, heads, dim, TOKEN)]
    return fields, [Codes("base", Affine(2.0), (Scale("scale", TOKEN),)), Codes("rest", Plain())]


def sparse(heads: int, dim: int) -> Declared:
    fields, terms = affine(heads, dim)
    fields += [Field("index", torch.uint8, heads, 1, 3), Field("value", FLOAT16, heads, 1, 3)]
    return fields, [*terms, Sparse("index", "value")]


def low_rank(heads: int, dim: int) -> Declared:
    fields, terms = channels(heads, dim)
    fields += [Field("left", FLOAT16, heads, 1, 2), Field("right", FLOAT32, heads, 32, 2 * dim)]
    return fields, [*terms, LowRank("left", "right")]


DECLARED = {f.__name__: f for f in (
    affine, channels, table, product, counted, parts, ragged, residual, sparse, low_rank,
)}  # fmt: skip
CHAINS: dict[str, Sequence[Map]] = {
    "": (), "had": (Had(),), "rot": (Rot(),), "ctr": (Ctr(),), "smooth": (Smooth(),), "norm": (Norm(),),
    "normall": (NormAll(),), "ctr.smooth.rot.had": (Ctr(), Smooth(), Rot(), Had()),
    "ctr.norm.had": (Ctr(), Norm(), Had()), "norm.ctr": (Norm(), Ctr()), "unrope": (Unrope(),),
    "unrope.ctr": (Unrope(), Ctr()), "had.norm.unrope.smooth": (Had(), Norm(), Unrope(), Smooth()),
    "unrope.ctr.norm.rot.had": (Unrope(), Ctr(), Norm(), Rot(), Had()),
}  # fmt: skip


def made(
    declared: str, chain: str, which: Which, heads: int, dim: int, *, pairs: int, interleaved: bool
) -> Stored:
    """A method at a place whose keys are turned, with an orthogonal matrix for each head."""
    frequencies = tuple(10000 ** (-i / pairs) for i in range(pairs))
    matrix = torch.linalg.qr(torch.randn(heads, dim, dim, dtype=torch.float64))[0].float()
    place = Place(which, heads, dim, rope=Rope(frequencies, interleaved), constants={"rot": matrix})
    return Stored(Made(DECLARED[declared]), place, tuple(CHAINS[chain]), 32 if chain else 0)
