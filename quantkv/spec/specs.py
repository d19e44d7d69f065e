"""Cache specs: frozen, validated at construction, said by one short string (grammar: `quantkv.spec.text`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch

from quantkv.codecs import Place, Stored
from quantkv.codecs.constants import constants_named
from quantkv.codecs.place import Which
from quantkv.codecs.registry import map_named
from quantkv.errors import QuantKVError
from quantkv.named import NAMES, PUBLISHED, TENSOR_TEXTS
from quantkv.policy import Window, policy_named
from quantkv.spec.tensors import DEFAULT_RESERVE, DEFAULT_SINKS, TensorSpec, check_count
from quantkv.spec.text import Defaults, Said, chains_of, fit_tokens, read_tensor, read_text, tensor_parts
from quantkv.store import PageLayout, page_layout
from quantkv.wording.suggestions import did_you_mean


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers `first` to `last`, both included; negative numbers count from the end."""

    first: int
    last: int

    def holds(self, layer: int, num_layers: int) -> bool:
        first, last = (i + num_layers if i < 0 else i for i in (self.first, self.last))
        return first <= layer <= last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        match = re.fullmatch(r"(-?\d+)(?:-(-?\d+))?", text.strip())
        if not match:
            raise QuantKVError(f"layer range {text!r}; legal: 3, -1, 0-1, 2--3")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if (first < 0) == (last < 0) and last < first:
            raise QuantKVError(f"layer range {text!r} ends before it begins; legal: {last}-{first}")
        return cls(first, last)


class Half(NamedTuple):
    """The keys, or the values, of one layer under a format."""

    which: Which
    tensor: TensorSpec
    window: Window
    constants: str = ""

    @property
    def name(self) -> str:
        return f"{self.which}s"

    def stored(self, heads: int, width: int, dtype: torch.dtype) -> Stored:
        """The method for tensors `[B, heads, T, width]`, as far as shapes decide; QuantKVError where they
        cannot be held."""
        constants = constants_named(self.constants).of_any_layer(self.which) if self.constants else {}
        return self.tensor.at(Place(self.which, heads, width, dtype, constants=constants))

    def layout(self, heads: int, width: int, dtype: torch.dtype) -> PageLayout:
        """How pages hold such tensors."""
        return page_layout(self.stored(heads, width, dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSpec:
    """A whole cache format: keys, values, sinks, roll-back reserve, per-layer overrides (later ones win).

    With `quantize_after` N everything stays exact until more than N tokens are cached, and is packed at once
    then. With `sliding` layers with a sliding window are quantized too; they stay exact otherwise.
    """

    key: TensorSpec
    value: TensorSpec
    sinks: int = DEFAULT_SINKS
    reserve: int = DEFAULT_RESERVE
    quantize_after: int = 0
    sliding: bool = False
    policy: str = "window"
    constants: str = ""
    layers: tuple[tuple[LayerRange, CacheSpec], ...] = ()

    def __post_init__(self) -> None:
        check_count("sinks", self.sinks, 0)
        check_count("reserve", self.reserve, 0)
        check_count("quantize_after", self.quantize_after, 0)
        policy_named(self.policy)
        if self.constants:
            constants_named(self.constants)
        for half in self.halves:  # their windows are checked as they are made
            self._check_maps(half)
        for where, override in self.layers:
            if override.layers:
                raise QuantKVError(f"the override for layers {where} has overrides of its own")

    def _check_maps(self, half: Half) -> None:
        """Raise for a map of keys that values would take, or the other way round."""
        if wrong := [word for word in half.tensor.maps if half.which not in map_named(word).tensors]:
            of = " and ".join(f"{name}s" for name in map_named(wrong[0]).tensors)
            raise QuantKVError(f"{wrong[0]} is a map of {of} alone: {half.name} cannot take it")

    def __str__(self) -> str:
        return format_spec(self)

    @property
    def name(self) -> str:
        """The preset's name where this spec is one, with its maps; else the short string."""
        if not self.key.maps and not self.value.maps:
            return next((name for name, spec in presets().items() if spec == self), str(self))
        codecs, chains = (self.key.codec, self.value.codec), chains_of(self.key, self.value)
        akin = [name for name, spec in presets().items() if (spec.key.codec, spec.value.codec) == codecs]
        names = (chain.after(name) for name in akin for chain in chains)
        return next((name for name in names if parse_spec(name) == self), str(self))

    @property
    def is_raw(self) -> bool:
        return self.key.is_raw and self.value.is_raw

    @property
    def published_policy(self) -> bool:
        """Whether this is a preset whose sinks, window and flush rules are part of the published scheme."""
        return self.name.partition("@")[0] in PUBLISHED

    @property
    def key_window(self) -> Window:
        return self.key.window(self.sinks, self.reserve, self.quantize_after, self.policy)

    @property
    def value_window(self) -> Window:
        return self.value.window(self.sinks, self.reserve, self.quantize_after, self.policy)

    @property
    def halves(self) -> tuple[Half, Half]:
        return (
            Half("key", self.key, self.key_window, self.constants),
            Half("value", self.value, self.value_window, self.constants),
        )

    def for_layer(self, layer: int, num_layers: int) -> CacheSpec:
        """The spec of one layer, overrides applied."""
        spec = replace(self, layers=())
        for where, override in self.layers:
            if where.holds(layer, num_layers):
                spec = override
        return spec

    def check_layers(self, num_layers: int) -> None:
        """Raise where an override applies to no layer of a model: it would have no effect."""
        for where, _ in self.layers:
            if not any(where.holds(layer, num_layers) for layer in range(num_layers)):
                legal = f"0 to {num_layers - 1}, or -1 to -{num_layers} from the end"
                raise QuantKVError(f"l{where} names no layer of this model; legal layers: {legal}")

    def with_layers(self, layers: Mapping[str | int, str | CacheSpec]) -> CacheSpec:
        """A copy with overrides such as `{"0-1": "fp16", -1: "int8-head"}`."""
        overrides = tuple((LayerRange.parse(str(k)), parse_spec(v)) for k, v in layers.items())
        return replace(self, layers=self.layers + overrides)

    def bits_packed(
        self, *, head_dim: int, num_key_value_heads: int, dtype: torch.dtype = torch.float32
    ) -> float:
        """Bits per element of full pages, keys and values averaged, without per-layer overrides."""
        layouts = [half.layout(num_key_value_heads, head_dim, dtype) for half in self.halves]
        return sum(layout.bits_per_element for layout in layouts) / 2


def parse_spec(
    text: str | CacheSpec, *, sinks: int | None = None, recent: int | None = None, flush: int | None = None
) -> CacheSpec:
    """A preset name or short string to a spec. `sinks`, `recent` and `flush` are the defaults for what the
    string leaves open; raw floats and presets with a published policy keep their own. Raises QuantKVError
    naming the legal values, and the nearest preset."""
    if isinstance(text, CacheSpec):
        return text
    given = {"sinks": sinks, "recent": recent, "flush": flush}
    try:
        return _parsed(text, {name: value for name, value in given.items() if value is not None})
    except QuantKVError as error:
        said = "did you mean" in str(error) or "@" in str(text)
        hint = "" if said else did_you_mean(str(text), NAMES)
        raise QuantKVError(f"{error}{hint}") from None


def _parsed(text: str, policy: dict[str, int]) -> CacheSpec:
    said, defaults = read_text(text), Defaults(**policy)
    spec = _published(presets()[said.base], said) if said.base in PUBLISHED else _from_tensors(said, defaults)
    overrides: dict[str | int, str | CacheSpec] = {
        where: parse_spec("+".join(sub), **policy) for where, sub in said.layers.items()
    }
    return spec.with_layers(overrides) if overrides else spec


def _published(preset: CacheSpec, said: Said) -> CacheSpec:
    """A preset with its own policy, changed only where the string says so."""
    changed: dict[str, Any] = {
        name: said.numbers["", letter]
        for letter, name in (("r", "recent"), ("f", "flush"))
        if ("", letter) in said.numbers
    }
    key, value = (
        replace(tensor, **changed, maps=words.maps, fit_tokens=fit_tokens(words))
        for tensor, words in ((preset.key, said.words.only("key")), (preset.value, said.words.only("value")))
    )
    return _whole(key, value, said, preset.sinks)


def _from_tensors(said: Said, defaults: Defaults) -> CacheSpec:
    key, value = (read_tensor(said, which, defaults) for which in "kv")
    return _whole(key, value, said, 0 if key.is_raw and value.is_raw else defaults.sinks)


def _whole(key: TensorSpec, value: TensorSpec, said: Said, sinks: int) -> CacheSpec:
    return CacheSpec(
        key=key,
        value=value,
        sinks=said.number("s", sinks),
        reserve=said.number("k", DEFAULT_RESERVE),
        quantize_after=said.number("q", 0),
        sliding=bool(said.number("sliding", 0)),
        policy=said.policy,
        constants=said.constants,
    )


@cache
def presets() -> dict[str, CacheSpec]:
    """All formats that have a name, in the order that tables show them."""
    pairs = {name: f"k.{key}+v.{value}" for name, (key, value) in TENSOR_TEXTS.items()}
    return {name: parse_spec(text) for name, text in (pairs | PUBLISHED).items()}


def format_spec(spec: CacheSpec) -> str:
    """The canonical string: `parse_spec(format_spec(spec)) == spec`, and equal specs print alike."""
    parts = tensor_parts(spec.key, spec.value)
    default_sinks = 0 if spec.is_raw else DEFAULT_SINKS
    parts += [f"s{spec.sinks}"] if spec.sinks != default_sinks else []
    parts += [f"k{spec.reserve}"] if spec.reserve != DEFAULT_RESERVE else []
    parts += [f"q{spec.quantize_after}"] if spec.quantize_after else []
    parts += ["sliding"] if spec.sliding else []
    parts += [f"p.{spec.policy}"] if spec.policy != "window" else []
    parts += [f"c.{spec.constants}"] if spec.constants else []
    for where, override in spec.layers:
        parts += [f"l{where}.{part}" for part in str(override).split("+")]
    return "+".join(parts)
