"""Codecs and maps by name: what a spec string may say, and how each name is built.

A codec registers a name, the sharing words and options that it understands and a builder, a map its word;
everything else (parsing, printing, the contract tests, `quantkv formats`) is driven from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from quantkv.codecs.affine import Affine, AffineOptions
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Sharing
from quantkv.codecs.float8 import Float8, Float8Options
from quantkv.codecs.lloyd_max import LloydMax
from quantkv.codecs.maps.ctr import Ctr
from quantkv.codecs.maps.had import Had
from quantkv.codecs.maps.map import Map
from quantkv.codecs.maps.norm import Norm, NormAll
from quantkv.codecs.maps.rot import Rot
from quantkv.codecs.maps.smooth import Smooth
from quantkv.codecs.maps.unrope import Unrope
from quantkv.codecs.options import METADATA, RESERVED, NoOptions, legal_words, read_option
from quantkv.codecs.outliers import Outliers
from quantkv.codecs.raw import Raw
from quantkv.errors import QuantKVError
from quantkv.named import NAMES, TENSOR_TEXTS
from quantkv.plugins import Registry
from quantkv.version import METHODS

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


@dataclass(frozen=True, slots=True)
class CodecFamily:
    """A registered name: `bits` is the width of a code, `sharings` and `options` are what its builder makes
    something of; all else is refused where a format is named. QuantKVError for words that do not exist."""

    name: str
    bits: int | None
    build: Callable[[Any, Any], Codec]
    """Of a `Sharing` (None for codecs without scales) and an instance of `options`, both checked already."""
    sharings: tuple[str, ...] = ("token-head",)
    """Full names of the sharing words it takes, the default first; empty for codecs without scales."""
    options: type[Any] = NoOptions
    """A frozen dataclass, as `quantkv.codecs.options` reads them."""
    raw: bool = False
    """The floats themselves: as many of them as given, each packed at once, no window; takes no words."""
    affine: bool = False
    unit: bool = False
    """Whether it wants numbers of unit size: it then stands behind a map that makes them, such as `norm`."""
    summary: str = ""
    version: int = 1
    """Goes up when it stores other codes for the same input, so that its formats are measured again."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.sharings) - set(ALL_SHARINGS)):
            legal = ", ".join(ALL_SHARINGS)
            raise QuantKVError(f"{self.name!r} cannot take {', '.join(unknown)}; legal words: {legal}")
        if self.raw and (self.sharings or legal_words(self.options)):
            raise QuantKVError(f"{self.name!r} is raw and has no scales: give it sharings=() and no options")
        if type(self.version) is not int or self.version < 1:
            raise QuantKVError(
                f"version of {self.name!r} must be an integer of at least 1, not {self.version!r}"
            )


def register_codec(family: CodecFamily) -> None:
    """Add a codec under its name; a name can be taken only once, though by the same family again.
    QuantKVError for names and options that a string could not say, or not tell from others."""
    _check_name(family.name)
    for word, (map, _) in MAPS.known.items():
        _check_apart(family, word, map)
    FAMILIES.add(family.name, family, getattr(family.build, "__module__", "Python"))


def _check_name(name: str) -> None:
    if (
        not isinstance(name, str)
        or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        or RESERVED.fullmatch(name)
    ):
        raise QuantKVError(
            f"a codec cannot be called {name!r}: use a-z, 0-9 and single - between them, and nothing that "
            "reads as a window, such as r64"
        )
    if name in NAMES and TENSOR_TEXTS.get(name) != (name, name):
        raise QuantKVError(f"a codec cannot be called {name!r}: that is a preset")
    for other in FAMILIES.known:
        for long, short in ((name, other), (other, name)):
            if long.startswith(f"{short}-") and long[len(short) + 1 :] in SHARING_WORDS:
                raise QuantKVError(
                    f"a codec cannot be called {name!r}: {long!r} is {short!r} with a sharing word"
                )


def register_map(word: str, map: type[Map]) -> None:
    """Add a map under the word that formats join behind their `@`. QuantKVError for words that a string could
    not say, or not tell from a codec's option."""
    if not isinstance(word, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", word) or RESERVED.fullmatch(word):
        raise QuantKVError(
            f"a map cannot be called {word!r}: use a-z, 0-9 and -, and nothing such as g32 or w128"
        )
    if not set(map.tensors) or not set(map.tensors) <= {"key", "value"}:
        raise QuantKVError(f"{word!r} must be a map of key, of value, or of both, not of {map.tensors!r}")
    for family, _ in FAMILIES.known.values():
        _check_apart(family, word, map)
    MAPS.add(word, map, map.__module__)


def _check_apart(family: CodecFamily, word: str, map: type[Map]) -> None:
    if read_option(family.options, word):
        raise QuantKVError(
            f"{word!r} is a map ({map.__module__}) and an option of {family.name!r}: change one"
        )


def _take(name: str, value: object) -> None:
    if not isinstance(value, CodecFamily):
        raise QuantKVError(f"entry point {name!r} of {ENTRY_POINTS} must be a CodecFamily, not {value!r}")
    register_codec(value)


def _take_map(name: str, value: object) -> None:
    if not isinstance(value, type) or not issubclass(value, Map):
        raise QuantKVError(
            f"entry point {name!r} of {MAP_ENTRY_POINTS} must be a subclass of Map, not {value!r}"
        )
    register_map(name, value)


ENTRY_POINTS = "quantkv.codecs"
"""Installed packages offer codecs under this entry-point group; each entry point is a `CodecFamily`."""
MAP_ENTRY_POINTS = "quantkv.maps"
"""And maps under this one; each entry point is a subclass of `Map`, and its name the map's word."""
FAMILIES: Registry[CodecFamily] = Registry("codec", ENTRY_POINTS, _take)
MAPS: Registry[type[Map]] = Registry("map", MAP_ENTRY_POINTS, _take_map)


def codec_family(name: str) -> CodecFamily:
    """The family registered under `name`; QuantKVError naming the legal ones otherwise."""
    return FAMILIES.get(name)


def codec_names() -> list[str]:
    return FAMILIES.names()


def map_named(word: str) -> type[Map]:
    """The map registered under `word`; QuantKVError naming the legal ones otherwise."""
    return MAPS.get(word)


def map_words() -> list[str]:
    return MAPS.names()


def _affine(bits: int) -> Callable[[Sharing, AffineOptions], Codec]:
    def build(sharing: Sharing, o: AffineOptions) -> Codec:
        return Affine(bits, sharing, symmetric=o.sym, metadata=METADATA[o.metadata], outward=not o.near)

    return build


def _float8(kind: Literal["e4m3", "e5m2"]) -> Callable[[Sharing, Float8Options], Codec]:
    return lambda sharing, o: Float8(kind, sharing, metadata=METADATA[o.metadata])


FLOAT8_KINDS: dict[str, Literal["e4m3", "e5m2"]] = {"fp8-e4m3": "e4m3", "fp8-e5m2": "e5m2"}


def _lloyd_max(bits: int, sharing: None, o: NoOptions) -> Codec:
    return LloydMax(bits)


def _raw(dtype: torch.dtype | None) -> Callable[[None, NoOptions], Codec]:
    return lambda sharing, o: Raw(dtype)


def _register(name: str, bits: int | None, build: Callable[[Any, Any], Codec], **more: Any) -> None:
    register_codec(CodecFamily(name, bits, build, version=METHODS[name], **more))


for _bits in (2, 3, 4, 5, 6, 8):
    _words = {"sharings": ALL_SHARINGS, "options": AffineOptions}
    _register(f"int{_bits}", _bits, _affine(_bits), **_words, affine=True, summary="affine integers")
for _name, _kind in FLOAT8_KINDS.items():
    _words = {"sharings": ALL_SHARINGS, "options": Float8Options}
    _register(_name, 8, _float8(_kind), **_words, summary="8-bit floats with a scale")
for _name, _dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
    _register(_name, None, _raw(_dtype), sharings=(), raw=True, summary="raw floats")
_register("exact", None, _raw(None), sharings=(), raw=True, summary="lossless, in the model's dtype")
for _bits in (2, 3, 4):
    _build, _words = partial(_lloyd_max, _bits), {"sharings": (), "unit": True}
    _register(f"lm{_bits}", _bits, _build, **_words, summary="Lloyd–Max table of a normal distribution")
_register("out3", 3, lambda sharing, o: Outliers(), summary="3-bit integers, and what stands out apart")
BUILT_IN_MAPS: dict[str, type[Map]] = {
    "ctr": Ctr, "had": Had, "norm": Norm, "normall": NormAll, "rot": Rot, "smooth": Smooth, "unrope": Unrope,
}  # fmt: skip
for _word, _map in BUILT_IN_MAPS.items():
    register_map(_word, _map)
