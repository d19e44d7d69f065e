"""The short canonical string of a format, as tensors and numbers: what it says, and how they are said.

    int4-head                                  keys and values alike
    k.int8-channel@g32+v.int4-head+r128+s4     keys and values apart, 128 recent tokens and 4 sinks exact
    int4-head+l0-1.fp16+l-1.int8-head          per-layer overrides

Parts are joined by `+`. A tensor part is `<codec>-<sharing>@<options>`, options joined by dots: `g32`
(group), `sym`, `fp16|bf16|fp32` (dtype of scale and zero), `near` (round metadata to nearest, as published
schemes do). `rN` recent and `fN` flush may follow either tensor: given twice, each belongs to the tensor it
follows; given once at the end, it holds for both. `sN` sinks, `kN` roll-back reserve, `qN` keeps everything
exact until N tokens are cached, `sliding` packs layers with a sliding window too, `p.NAME` follows a
registered policy, `lA-B.` before a part sets it for layers A to B (negative from the end).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from quantkv.codecs import CodecFamily, codec_family, codec_names
from quantkv.codecs.registry import METADATA, SHARING_WORDS
from quantkv.errors import QuantKVError
from quantkv.plugins import HINT
from quantkv.spec.named import NAMES, PUBLISHED, TENSOR_TEXTS
from quantkv.spec.tensors import (
    DEFAULT_FLUSH,
    DEFAULT_GROUP,
    DEFAULT_RECENT,
    DEFAULT_SINKS,
    GROUPED,
    TensorSpec,
    default_flush,
    default_sharing,
)
from quantkv.wording.suggestions import nearest

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
    letter), and the parts of overrides by their layers."""

    base: str | None = None
    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    layers: dict[str, list[str]] = field(default_factory=dict)
    policy: str = "window"

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
    if said.base and said.base not in PUBLISHED:
        said.tensors = dict(zip("kv", base_texts(said.base), strict=True))
    elif not said.base and set(said.tensors) != {"k", "v"}:
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
        elif match := _POLICY.fullmatch(part):
            owner = current if match[1] in "rf" else ""
            _once(said.numbers, (owner, match[1]), int(match[2]), text)
        elif said.base is None and not said.tensors:
            said.base = part
        else:
            raise QuantKVError(
                f"cannot read {part!r} in {text!r}; legal parts: k.… v.… rN fN sN kN qN sliding p.… lA-B.…"
            )
    return said


def _once(target: dict, key: object, value: object, text: str) -> None:
    if key in target:
        said = ".".join(part for part in key if part) if isinstance(key, tuple) else f"{key}."
        raise QuantKVError(f"{text!r} says {said} twice")
    target[key] = value


def base_texts(base: str) -> tuple[str, str]:
    """The key and value texts that a name stands for; options go to tensors of the name's own codec."""
    head = base.partition("@")[0]
    if base in TENSOR_TEXTS or head not in TENSOR_TEXTS:
        return TENSOR_TEXTS.get(base, (base, base))
    own = TENSOR_TEXTS[head]
    if all(text.partition("@")[0] != head for text in own):
        raise QuantKVError(f"{head} takes no options; write k.<codec>@<options>+v.<codec>@<options>")
    key, value = (base if text.partition("@")[0] == head else text for text in own)
    return key, value


def read_tensor(said: Said, which: str, defaults: Defaults) -> TensorSpec:
    """The spec of the keys (`which` "k") or values ("v"). Raises QuantKVError naming the legal values."""
    codec, sharing, options = _read_codec(said.tensors[which])
    flush = default_flush(codec, sharing, options.get("group"), defaults.flush)
    return TensorSpec(
        codec=codec,
        sharing=sharing,
        recent=_number(said, which, "r", 0 if codec_family(codec).raw else defaults.recent),
        flush=_number(said, which, "f", flush),
        **options,
    )


def _number(said: Said, which: str, letter: str, default: int) -> int:
    """A number after its own tensor, else one given once after the last tensor or after the base."""
    owners = (which, "", list(said.tensors)[-1])
    return next((said.numbers[owner, letter] for owner in owners if (owner, letter) in said.numbers), default)


def _read_codec(text: str) -> tuple[str, str | None, dict]:
    head, _, tail = text.partition("@")
    names = [n for n in codec_names() if head == n or head.startswith(n + "-")]
    if not names:
        raise QuantKVError(_unknown(text))
    codec = max(names, key=len)
    word = head[len(codec) + 1 :]
    if word and word not in SHARING_WORDS:
        raise QuantKVError(f"unknown sharing word {word!r} in {text!r}; legal: {', '.join(SHARING_WORDS)}")
    sharing = SHARING_WORDS[word] if word else default_sharing(codec)
    family = codec_family(codec)
    if sharing is None and family.sharings:
        raise QuantKVError(
            f"{text!r} does not say what shares a scale: {codec}-" + f", {codec}-".join(SHARING_WORDS)
        )
    options = _read_options(tail, text, family) if tail else {}
    if sharing in ("token", "channel"):
        options.setdefault("group", DEFAULT_GROUP)
    return codec, sharing, options


def _read_options(tail: str, text: str, family: CodecFamily) -> dict:
    options: dict = {}
    for option in tail.split("."):
        if re.fullmatch(r"g\d+", option):
            options["group"] = int(option[1:])
        elif option not in family.options:
            legal = " ".join([*(["gN"] if {*GROUPED} & {*family.sharings} else []), *family.options])
            none = "none, as it stores plain floats" if family.raw else "none"
            raise QuantKVError(f"unknown option {option!r} in {text!r}; legal: {legal or none}")
        elif option in METADATA:
            options["metadata"] = option
        else:
            options |= {"symmetric": True} if option == "sym" else {"outward": False}
    return options


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
    for name in (*TENSOR_TEXTS, key):
        if not first and base_texts(name) == (key, value):
            return [name, *last]
    return [f"k.{key}", *first, f"v.{value}", *last]


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
        return default_flush(tensor.codec, tensor.sharing, tensor.group)
    return 0 if tensor.is_raw else DEFAULT_RECENT
