"""Codecs by name: what a spec string may say, and how each name is built.

A codec registers a name, the sharing words it understands and a builder; everything else (parsing,
printing, the contract tests, `quantkv formats`) is driven from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from quantkv.codecs.affine import Affine
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Sharing
from quantkv.codecs.float8 import Float8
from quantkv.codecs.raw import Raw
from quantkv.errors import QuantKVError
from quantkv.plugins import Registry

SHARING_WORDS = {
    "head": "token-head",
    "token": "token",
    "token-all": "token-all",
    "channel": "channel",
    "chunk-head": "chunk-head",
    "chunk": "chunk",
}
"""The word in a short string, and its full name."""

SHARING_MEANING = {
    "token-head": "all channels of one token of one head",
    "token": "a run of G channels of one token of one head",
    "token-all": "all heads and channels of one token",
    "channel": "one channel of one head over G consecutive tokens",
    "chunk-head": "one head over one flush chunk",
    "chunk": "all heads over one flush chunk",
}
ALL_SHARINGS = tuple(SHARING_MEANING)
METADATA = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
OPTIONS = ("sym", "near", *METADATA)
"""What may follow the `@`, beside the group that a sharing word asks for."""


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """What a builder is given, checked already: `sharing` is None for codecs without scales, and what the
    family does not take is as it is by default."""

    sharing: Sharing | None
    symmetric: bool
    metadata: torch.dtype
    outward: bool


@dataclass(frozen=True, slots=True)
class CodecFamily:
    """A registered name: `bits` is the width of a code, `sharings` and `options` are what its builder makes
    something of; all else is refused where a format is named. QuantKVError for words that do not exist."""

    name: str
    bits: int | None
    build: Callable[[CodecOptions], Codec]
    sharings: tuple[str, ...] = ("token-head",)
    """Full names of the sharing words it takes, the default first; empty for codecs without scales."""
    options: tuple[str, ...] = ()
    """Of `OPTIONS`: sym, near, and the dtypes of scale and zero beside fp16."""
    raw: bool = False
    """The floats themselves: as many of them as given, each packed at once, no window; takes no words."""
    affine: bool = False
    summary: str = ""

    def __post_init__(self) -> None:
        for given, legal in ((self.sharings, ALL_SHARINGS), (self.options, OPTIONS)):
            if unknown := sorted(set(given) - set(legal)):
                names = ", ".join(unknown)
                raise QuantKVError(f"{self.name!r} cannot take {names}; legal words: {', '.join(legal)}")
        if self.raw and (self.sharings or self.options):
            raise QuantKVError(f"{self.name!r} is raw and has no scales: give it sharings=() and no options")


def register_codec(family: CodecFamily) -> None:
    """Add a codec under its name; a name can be taken only once, though by the same family again."""
    FAMILIES.add(family.name, family, getattr(family.build, "__module__", "Python"))


def _take(name: str, value: object) -> None:
    if not isinstance(value, CodecFamily):
        raise QuantKVError(f"entry point {name!r} of {ENTRY_POINTS} must be a CodecFamily, not {value!r}")
    register_codec(value)


ENTRY_POINTS = "quantkv.codecs"
"""Installed packages offer codecs under this entry-point group; each entry point is a `CodecFamily`."""
FAMILIES: Registry[CodecFamily] = Registry("codec", ENTRY_POINTS, _take)


def codec_family(name: str) -> CodecFamily:
    """The family registered under `name`; QuantKVError naming the legal ones otherwise."""
    return FAMILIES.get(name)


def codec_names() -> list[str]:
    return FAMILIES.names()


def _affine(bits: int) -> Callable[[CodecOptions], Codec]:
    def build(o: CodecOptions) -> Codec:
        assert o.sharing is not None
        return Affine(bits, o.sharing, symmetric=o.symmetric, metadata=o.metadata, outward=o.outward)

    return build


def _float8(kind: Literal["e4m3", "e5m2"]) -> Callable[[CodecOptions], Codec]:
    def build(o: CodecOptions) -> Codec:
        assert o.sharing is not None
        return Float8(kind, o.sharing, metadata=o.metadata)

    return build


FLOAT8_KINDS: dict[str, Literal["e4m3", "e5m2"]] = {"fp8-e4m3": "e4m3", "fp8-e5m2": "e5m2"}


def _raw(dtype: torch.dtype | None) -> Callable[[CodecOptions], Codec]:
    return lambda o: Raw(dtype)


for _bits in (2, 3, 4, 5, 6, 8):
    register_codec(
        CodecFamily(
            f"int{_bits}",
            _bits,
            _affine(_bits),
            ALL_SHARINGS,
            OPTIONS,
            affine=True,
            summary="affine integers",
        )
    )
for _name, _kind in FLOAT8_KINDS.items():
    register_codec(
        CodecFamily(
            _name, 8, _float8(_kind), ALL_SHARINGS, tuple(METADATA), summary="8-bit floats with a scale"
        )
    )
for _name, _dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
    register_codec(CodecFamily(_name, None, _raw(_dtype), (), raw=True, summary="raw floats"))
register_codec(CodecFamily("exact", None, _raw(None), (), raw=True, summary="lossless, in the model's dtype"))
