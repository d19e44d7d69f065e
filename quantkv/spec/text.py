"""The short canonical string of a cache spec: parse and print (grammar in `quantkv.spec.specs`)."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from typing import Any

from quantkv.codecs import codec_family, codec_names
from quantkv.codecs.registry import METADATA, SHARING_WORDS
from quantkv.errors import QuantKVError
from quantkv.plugins import HINT
from quantkv.spec.specs import (
    DEFAULT_FLUSH,
    DEFAULT_GROUP,
    DEFAULT_RECENT,
    DEFAULT_RESERVE,
    DEFAULT_SINKS,
    CacheSpec,
    TensorSpec,
    default_flush,
    default_sharing,
)

_POLICY = re.compile(r"([rfskq])(\d+)")
_LAYER = re.compile(r"l(-?\d+(?:--?\d+)?)\.(.+)")


@dataclass(frozen=True)
class _Defaults:
    sinks: int = DEFAULT_SINKS
    recent: int = DEFAULT_RECENT
    flush: int = DEFAULT_FLUSH


@dataclass
class _Parts:
    """What a string says, before defaults: tensor texts, and numbers by (tensor or '', letter)."""

    base: str | None = None
    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    layers: dict[str, list[str]] = field(default_factory=dict)
    policy: str = "window"


def parse_spec(
    text: str | CacheSpec,
    *,
    sinks: int | None = None,
    recent: int | None = None,
    flush: int | None = None,
) -> CacheSpec:
    """A preset name or short string to a spec. `sinks`, `recent` and `flush` are the defaults for what the
    string leaves open; raw floats and presets with a published policy keep their own. Raises QuantKVError
    naming the legal values."""
    if isinstance(text, CacheSpec):
        return text
    if not isinstance(text, str) or not re.fullmatch(r"[a-z0-9.@+-]+", text):
        raise QuantKVError(
            f"{text!r} is no format: use only a-z 0-9 . @ + -, as in k.int8-channel@g32+v.int4-head+r128"
        )
    given = {"sinks": sinks, "recent": recent, "flush": flush}
    defaults = _Defaults(**{k: v for k, v in given.items() if v is not None})
    parts = _collect(text)
    spec = _from_base(parts, defaults, text) if parts.base else _from_tensors(parts, defaults, text)
    overrides: dict[str | int, str | CacheSpec] = {
        where: parse_spec("+".join(sub), sinks=sinks, recent=recent, flush=flush)
        for where, sub in parts.layers.items()
    }
    return spec.with_layers(overrides) if overrides else spec


def _collect(text: str) -> _Parts:
    parts, current = _Parts(), ""
    for part in text.split("+"):
        if match := _LAYER.fullmatch(part):
            parts.layers.setdefault(match[1], []).append(match[2])
        elif part[:2] in ("k.", "v."):
            current = part[0]
            _once(parts.tensors, current, part[2:], text)
        elif part == "sliding":
            _once(parts.numbers, ("", part), 1, text)
        elif part.startswith("p."):
            parts.policy = part[2:]
        elif match := _POLICY.fullmatch(part):
            owner = current if match[1] in "rf" else ""
            _once(parts.numbers, (owner, match[1]), int(match[2]), text)
        elif parts.base is None and not parts.tensors:
            parts.base = part
        else:
            raise QuantKVError(
                f"cannot read {part!r} in {text!r}; legal parts: k.… v.… rN fN sN kN qN sliding p.… lA-B.…"
            )
    return parts


def _once(target: dict, key: object, value: object, text: str) -> None:
    if key in target:
        said = ".".join(part for part in key if part) if isinstance(key, tuple) else f"{key}."
        raise QuantKVError(f"{text!r} says {said} twice")
    target[key] = value


def _from_base(parts: _Parts, defaults: _Defaults, text: str) -> CacheSpec:
    from quantkv.spec.named import PUBLISHED, presets

    if parts.tensors:
        raise QuantKVError(f"{text!r} names both a whole format and single tensors")
    assert parts.base is not None
    if parts.base in PUBLISHED:
        return _published(presets()[parts.base], parts)
    key, value = base_texts(parts.base)
    parts.tensors = {"k": key, "v": value}
    return _from_tensors(parts, defaults, text)


def base_texts(base: str) -> tuple[str, str]:
    """The key and value texts that one name stands for; options go to the tensors that carry the name's own
    codec."""
    from quantkv.spec.named import tensor_texts

    head = base.partition("@")[0]
    if base in tensor_texts() or head not in tensor_texts():
        return tensor_texts().get(base, (base, base))
    own = tensor_texts()[head]
    if all(text.partition("@")[0] != head for text in own):
        raise QuantKVError(f"{head} takes no options; write k.<codec>@<options>+v.<codec>@<options>")
    key, value = (base if text.partition("@")[0] == head else text for text in own)
    return key, value


def _published(preset: CacheSpec, parts: _Parts) -> CacheSpec:
    """A preset with its own policy, changed only where the string says so."""
    numbers = parts.numbers
    changed: dict[str, Any] = {
        name: numbers["", letter]
        for letter, name in (("r", "recent"), ("f", "flush"))
        if ("", letter) in numbers
    }
    return replace(
        preset,
        key=replace(preset.key, **changed),
        value=replace(preset.value, **changed),
        sinks=numbers.get(("", "s"), preset.sinks),
        reserve=numbers.get(("", "k"), preset.reserve),
        quantize_after=numbers.get(("", "q"), 0),
        sliding=("", "sliding") in numbers,
        policy=parts.policy,
    )


def _from_tensors(parts: _Parts, defaults: _Defaults, text: str) -> CacheSpec:
    if set(parts.tensors) != {"k", "v"}:
        raise QuantKVError(f"{text!r} must name keys and values: k.<codec>+v.<codec>, or one codec for both")
    key, value = (_tensor(parts, which, defaults) for which in "kv")
    raw = key.is_raw and value.is_raw
    return CacheSpec(
        key=key,
        value=value,
        sinks=parts.numbers.get(("", "s"), 0 if raw else defaults.sinks),
        reserve=parts.numbers.get(("", "k"), DEFAULT_RESERVE),
        quantize_after=parts.numbers.get(("", "q"), 0),
        sliding=("", "sliding") in parts.numbers,
        policy=parts.policy,
    )


def _tensor(parts: _Parts, which: str, defaults: _Defaults) -> TensorSpec:
    codec, sharing, options = _read_tensor(parts.tensors[which])
    raw = not codec_family(codec).scaled
    flush = default_flush(codec, sharing, options.get("group"), defaults.flush)
    return TensorSpec(
        codec=codec,
        sharing=sharing,
        recent=_number(parts, which, "r", 0 if raw else defaults.recent),
        flush=_number(parts, which, "f", flush),
        **options,
    )


def _number(parts: _Parts, which: str, letter: str, default: int) -> int:
    """A number after its own tensor, else one given once after the last tensor or after the base."""
    numbers = parts.numbers
    if (which, letter) in numbers:
        return numbers[which, letter]
    if ("", letter) in numbers:
        return numbers["", letter]
    last = list(parts.tensors)[-1]
    return numbers.get((last, letter), default)


def _read_tensor(text: str) -> tuple[str, str | None, dict]:
    head, _, tail = text.partition("@")
    names = [n for n in codec_names() if head == n or head.startswith(n + "-")]
    if not names:
        raise QuantKVError(_unknown(text))
    codec = max(names, key=len)
    word = head[len(codec) + 1 :]
    if word and word not in SHARING_WORDS:
        raise QuantKVError(f"unknown sharing word {word!r} in {text!r}; legal: {', '.join(SHARING_WORDS)}")
    sharing = SHARING_WORDS[word] if word else default_sharing(codec)
    if sharing is None and codec_family(codec).scaled:
        raise QuantKVError(
            f"{text!r} does not say what shares a scale: {codec}-" + f", {codec}-".join(SHARING_WORDS)
        )
    options = _read_options(tail, text) if tail else {}
    if sharing in ("token", "channel"):
        options.setdefault("group", DEFAULT_GROUP)
    return codec, sharing, options


def _read_options(tail: str, text: str) -> dict:
    options: dict = {}
    for option in tail.split("."):
        if re.fullmatch(r"g\d+", option):
            options["group"] = int(option[1:])
        elif option == "sym":
            options["symmetric"] = True
        elif option == "near":
            options["outward"] = False
        elif option in METADATA:
            options["metadata"] = option
        else:
            raise QuantKVError(
                f"unknown option {option!r} in {text!r}; legal: gN sym near {' '.join(METADATA)}"
            )
    return options


def _unknown(text: str) -> str:
    from quantkv.spec.named import presets

    if match := re.match(r"int(\d+)\b", text):
        legal = sorted(int(name[3:]) for name in codec_names() if re.fullmatch(r"int\d+", name))
        return (
            f"unknown format {text!r}: {match[1]} is no legal number of bits; "
            f"legal: {', '.join(map(str, legal))}"
        )
    known = [*presets(), *codec_names()]
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    return (
        f"unknown format {text!r}{hint} Presets: {', '.join(presets())}. Codecs: {', '.join(codec_names())}. "
        f"Others: {HINT}"
    )


def format_spec(spec: CacheSpec) -> str:
    """The canonical string: `parse_spec(format_spec(spec)) == spec`, and equal specs print alike."""
    parts = _heads(spec)
    default_sinks = 0 if spec.is_raw else DEFAULT_SINKS
    parts += [f"s{spec.sinks}"] if spec.sinks != default_sinks else []
    parts += [f"k{spec.reserve}"] if spec.reserve != DEFAULT_RESERVE else []
    parts += [f"q{spec.quantize_after}"] if spec.quantize_after else []
    parts += ["sliding"] if spec.sliding else []
    parts += [f"p.{spec.policy}"] if spec.policy != "window" else []
    for where, override in spec.layers:
        parts += [f"l{where}.{part}" for part in str(override).split("+")]
    return "+".join(parts)


def _heads(spec: CacheSpec) -> list[str]:
    from quantkv.spec.named import tensor_texts

    key, value = str(spec.key), str(spec.value)
    first, last = _window_parts(spec)
    for name in (*tensor_texts(), key):
        if not first and base_texts(name) == (key, value):
            return [name, *last]
    return [f"k.{key}", *first, f"v.{value}", *last]


def _window_parts(spec: CacheSpec) -> tuple[list[str], list[str]]:
    """What to print after the keys and after the values: nothing for defaults, once at the end where both
    agree."""
    first, last = [], []
    for letter in "rf":
        key, value = _own(spec.key, letter), _own(spec.value, letter)
        if (key, value) == (_usual(spec.key, letter), _usual(spec.value, letter)):
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
