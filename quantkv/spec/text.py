"""The short canonical string of a format, as tensors and numbers: what it says, and how they are said.

    int4-head                                  keys and values alike
    k.int8-channel@g32+v.int4-head+r128+s4     keys and values apart, 128 recent tokens and 4 sinks exact
    int4-head+l0-1.fp16+l-1.int8-head          per-layer overrides

Parts are joined by `+`. A tensor part is `<codec>-<sharing>@<words>`, words joined by dots: `g32` (group),
the codec's options (of integers `sym`, `fp16|bf16|fp32` for the dtype of scale and zero, and `near` to
round these to nearest, as published schemes do), maps in the order in which they apply (`had`, `ctr`), and
`wN`, how many tokens of a row their state is fitted on. `rN` recent and `fN` flush may follow either
tensor: given twice, each belongs to the tensor it follows; given once at the end, it holds for both. `sN`
sinks, `kN` roll-back reserve, `qN` keeps everything exact until N tokens are cached, `sliding` packs layers
with a sliding window too, `p.NAME` follows a registered policy, `c.NAME` takes registered constants, `lA-B.`
before a part sets it for layers A to B (negative from the end).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from quantkv.codecs import CodecFamily, codec_family, codec_names
from quantkv.codecs.options import legal_words, read_option, read_options
from quantkv.codecs.registry import SHARING_WORDS, map_words
from quantkv.errors import QuantKVError
from quantkv.named import NAMES, TENSOR_TEXTS
from quantkv.plugins import HINT
from quantkv.spec.tensors import (
    DEFAULT_FLUSH,
    DEFAULT_GROUP,
    DEFAULT_RECENT,
    DEFAULT_SINKS,
    GROUPED,
    TensorSpec,
    check_count,
    default_flush,
    default_sharing,
)
from quantkv.spec.words import Words, base_texts, published
from quantkv.wording.suggestions import did_you_mean, nearest

_POLICY = re.compile(r"([rfskq])(\d+)")
_LAYER = re.compile(r"l(-?\d+(?:--?\d+)?)\.(.+)")


@dataclass(frozen=True)
class Defaults:
    """What holds where a string leaves it open."""

    sinks: int = DEFAULT_SINKS
    recent: int = DEFAULT_RECENT
    flush: int = DEFAULT_FLUSH


@dataclass
class Said:
    """What a string says: the name of a whole format (`base`) or tensor texts, numbers by (tensor or '',
    letter), and the parts of overrides by their layers. `words` are the maps said with a published scheme."""

    base: str | None = None
    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    layers: dict[str, list[str]] = field(default_factory=dict)
    policy: str = "window"
    constants: str = ""
    words: Words = field(default_factory=Words)

    def number(self, letter: str, default: int) -> int:
        """A number that holds for the whole format."""
        return self.numbers.get(("", letter), default)


def read_text(text: str) -> Said:
    """Take a string apart. Raises QuantKVError naming the legal parts."""
    if not isinstance(text, str) or not re.fullmatch(r"[a-z0-9.@+-]+", text):
        raise QuantKVError(
            f"{text!r} is no format: use only a-z 0-9 . @ + -, as in k.int8-channel@g32+v.int4-head+r128"
        )
    said = _collect(text)
    if said.base and said.tensors:
        raise QuantKVError(f"{text!r} names both a whole format and single tensors")
    if scheme := published(said.base or ""):
        said.base, said.words = scheme
    elif said.base:
        said.tensors = dict(zip("kv", base_texts(said.base), strict=True))
    elif set(said.tensors) != {"k", "v"}:
        raise QuantKVError(f"{text!r} must name keys and values: k.<codec>+v.<codec>, or one codec for both")
    return said


def _collect(text: str) -> Said:
    said, current = Said(), ""
    for part in text.split("+"):
        if match := _LAYER.fullmatch(part):
            said.layers.setdefault(match[1], []).append(match[2])
        elif part[:2] in ("k.", "v."):
            current = part[0]
            _once(said.tensors, current, part[2:], text)
        elif part == "sliding":
            _once(said.numbers, ("", part), 1, text)
        elif part.startswith("p."):
            said.policy = part[2:]
        elif part.startswith("c."):
            _once(said.numbers, ("", "c"), 1, text)
            said.constants = part[2:]
        elif match := _POLICY.fullmatch(part):
            owner = current if match[1] in "rf" else ""
            _once(said.numbers, (owner, match[1]), int(match[2]), text)
        elif said.base is None and not said.tensors:
            said.base = part
        else:
            raise QuantKVError(
                f"cannot read {part!r} in {text!r}; legal parts: k.… v.… rN fN sN kN qN sliding p.… c.… "
                "lA-B.…"
            )
    return said


def _once(target: dict, key: object, value: object, text: str) -> None:
    if key in target:
        said = ".".join(part for part in key if part) if isinstance(key, tuple) else f"{key}."
        raise QuantKVError(f"{text!r} says {said} twice")
    target[key] = value


def read_tensor(said: Said, which: str, defaults: Defaults) -> TensorSpec:
    """The spec of the keys (`which` "k") or values ("v"). Raises QuantKVError naming the legal values."""
    text = said.tensors[which]
    codec, sharing = _read_codec(text)
    words = Words.of(text)
    group, options = _read_options(words, text, codec_family(codec))
    if sharing in GROUPED and group is None:
        group = DEFAULT_GROUP
    flush = default_flush(codec, sharing, group, defaults.flush, options)
    return TensorSpec(
        codec=codec,
        sharing=sharing,
        group=group,
        options=options,
        maps=words.maps,
        fit_tokens=fit_tokens(words),
        recent=_number(said, which, "r", 0 if codec_family(codec).raw else defaults.recent),
        flush=_number(said, which, "f", flush),
    )


def fit_tokens(words: Words) -> int:
    """The number of `wN`; 0 where none is said."""
    if not words.fit:
        return 0
    check_count("w", number := int(words.fit[1:]), 2)
    return number


def _number(said: Said, which: str, letter: str, default: int) -> int:
    """A number after its own tensor, else one given once after the last tensor or after the base."""
    owners = (which, "", list(said.tensors)[-1])
    return next((said.numbers[owner, letter] for owner in owners if (owner, letter) in said.numbers), default)


def _read_codec(text: str) -> tuple[str, str | None]:
    head = text.partition("@")[0]
    names = [n for n in codec_names() if head == n or head.startswith(n + "-")]
    if not names:
        raise QuantKVError(_unknown(text))
    codec = max(names, key=len)
    word = head[len(codec) + 1 :]
    if word and word not in SHARING_WORDS:
        full = codec_family(codec).sharings
        legal = ", ".join(word for word, name in SHARING_WORDS.items() if name in full) or "none"
        raise QuantKVError(f"unknown sharing word {word!r} in {text!r}; {codec} takes: {legal}")
    sharing = SHARING_WORDS[word] if word else default_sharing(codec)
    if sharing is None and codec_family(codec).sharings:
        raise QuantKVError(
            f"{text!r} does not say what shares a scale: {codec}-" + f", {codec}-".join(SHARING_WORDS)
        )
    return codec, sharing


def _read_options(words: Words, text: str, family: CodecFamily) -> tuple[int | None, Any]:
    """The group that is said, if one is, and the codec's options."""
    groups = [word for word in words.own if re.fullmatch(r"g\d+", word)]
    own = [word for word in words.own if word not in groups]
    if len(groups) > 1:
        raise QuantKVError(f"{text!r} says {groups[0]} and {groups[1]}")
    if unknown := [word for word in own if read_option(family.options, word) is None]:
        raise QuantKVError(_unknown_option(unknown[0], text, family))
    try:
        options = read_options(family.options, own)
    except QuantKVError as error:
        raise QuantKVError(f"{text!r}: {error}") from None
    return int(groups[0][1:]) if groups else None, options


def _unknown_option(word: str, text: str, family: CodecFamily) -> str:
    if family.raw:
        return f"unknown option {word!r} in {text!r}; legal: none, as it stores plain floats"
    legal = [*(["gN"] if {*GROUPED} & {*family.sharings} else []), *legal_words(family.options)]
    maps = map_words()
    return (
        f"unknown option {word!r} in {text!r}; legal: {' '.join(legal) or 'none'}; maps: {' '.join(maps)}"
        f"{did_you_mean(word, [*legal, *maps])}"
    )


def _unknown(text: str) -> str:
    if match := re.match(r"int(\d+)\b", text):
        legal = sorted(int(name[3:]) for name in codec_names() if re.fullmatch(r"int\d+", name))
        return (
            f"unknown format {text!r}: {match[1]} is no legal number of bits; "
            f"legal: {', '.join(map(str, legal))}"
        )
    known = [*NAMES, *codec_names()]
    close = nearest(text, known)
    hint = f"; did you mean {close}?" if close else "."
    return (
        f"unknown format {text!r}{hint} Presets: {', '.join(NAMES)}. Codecs: {', '.join(codec_names())}. "
        f"Others: {HINT}"
    )


def tensor_parts(key_spec: TensorSpec, value_spec: TensorSpec) -> list[str]:
    """The parts of a string that say keys and values with their windows, as short as can be."""
    key, value = str(key_spec), str(value_spec)
    first, last = _window_parts(key_spec, value_spec)
    for name in [] if first else _names(key_spec, value_spec):
        if base_texts(name) == (key, value):
            return [name, *last]
    return [f"k.{key}", *first, f"v.{value}", *last]


def _names(key_spec: TensorSpec, value_spec: TensorSpec) -> list[str]:
    """What may say both tensors at once: presets with the maps of one of them, or the text of one."""
    presets = (chain.after(name) for chain in chains_of(key_spec, value_spec) for name in TENSOR_TEXTS)
    return [*presets, str(key_spec), str(value_spec)]


def chains_of(key_spec: TensorSpec, value_spec: TensorSpec) -> list[Words]:
    """The maps of each, with what they are fitted on."""
    return [replace(Words.of(str(tensor)), own=()) for tensor in (key_spec, value_spec)]


def _window_parts(key_spec: TensorSpec, value_spec: TensorSpec) -> tuple[list[str], list[str]]:
    """What to print after keys and after values: nothing for defaults, once at the end where both agree."""
    first, last = [], []
    for letter in "rf":
        key, value = _own(key_spec, letter), _own(value_spec, letter)
        if (key, value) == (_usual(key_spec, letter), _usual(value_spec, letter)):
            continue
        first += [f"{letter}{key}"] if key != value else []
        last += [f"{letter}{value}"]
    return first, last


def _own(tensor: TensorSpec, letter: str) -> int:
    return tensor.recent if letter == "r" else tensor.flush


def _usual(tensor: TensorSpec, letter: str) -> int:
    if letter == "f":
        return default_flush(tensor.codec, tensor.sharing, tensor.group, options=tensor.options)
    return 0 if tensor.is_raw else DEFAULT_RECENT
