"""Cache specs: frozen, validated at construction, printed and parsed as one short canonical string.

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
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from quantkv.codecs import Codec, Sharing, codec_family
from quantkv.codecs.registry import METADATA, SHARING_WORDS, Options
from quantkv.errors import QuantKVError
from quantkv.policy import Window, policy_named

DEFAULT_GROUP, DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS, DEFAULT_RESERVE = 32, 32, 64, 4, 32
_WORDS = {full: word for word, full in SHARING_WORDS.items()}
_GROUPED = ("token", "channel")


def default_flush(codec: str, sharing: str | None, group: int | None, wanted: int = DEFAULT_FLUSH) -> int:
    """Raw floats pack every token at once; groups along tokens round the flush chunk up to whole groups."""
    if not codec_family(codec).scaled:
        return 1
    return -(-wanted // group) * group if sharing == "channel" and group else wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """How keys (or values) are stored: codec, what shares a scale, and the exact window. Tokens for lengths.

    `sharing` is one of the words token-head, token, token-all, channel, chunk-head, chunk (None for raw
    floats); `group` counts tokens for `channel` and channels for `token`. Raises QuantKVError naming the
    legal values.
    """

    codec: str
    sharing: str | None = None
    group: int | None = None
    symmetric: bool = False
    metadata: str = "fp16"
    outward: bool = True
    recent: int = DEFAULT_RECENT
    flush: int = DEFAULT_FLUSH

    def __post_init__(self) -> None:
        self._check_sharing()
        self._check_group()
        _check_count("recent", self.recent, 0)
        _check_count("flush", self.flush, 1)
        if self.sharing == "channel" and self.flush % (self.group or 1):
            raise QuantKVError(
                f"flush {self.flush} is not a multiple of the group of {self.group} tokens; legal: "
                f"{self.group}, {2 * (self.group or 1)}, {4 * (self.group or 1)}, …"
            )

    def _check_sharing(self) -> None:
        family = codec_family(self.codec)
        if family.scaled and self.sharing not in _WORDS:
            raise QuantKVError(
                f"{self.codec} needs a sharing word, not {self.sharing!r}; legal words: {', '.join(_WORDS)}"
            )
        plain = (self.symmetric, self.metadata, self.outward, self.sharing) == (False, "fp16", True, None)
        if not family.scaled and not plain:
            raise QuantKVError(f"{self.codec} stores plain floats: it takes no sharing word and no options")
        if self.metadata not in METADATA:
            raise QuantKVError(f"metadata dtype {self.metadata!r}; legal: {', '.join(METADATA)}")
        if (self.symmetric or not self.outward) and not family.affine:
            raise QuantKVError(f"{self.codec} takes neither sym nor near; both belong to the int codecs")

    def _check_group(self) -> None:
        if self.sharing in _GROUPED:
            _check_count("group", self.group, 2)
        elif self.group is not None:
            raise QuantKVError(
                f"only {' and '.join(_GROUPED)} take a group, {self.sharing or self.codec} does not"
            )

    @property
    def bits(self) -> int | None:
        return codec_family(self.codec).bits

    @property
    def is_raw(self) -> bool:
        return not codec_family(self.codec).scaled

    def build(self) -> Codec:
        """The codec object for this spec."""
        options = Options(self._sharing(), self.symmetric, METADATA[self.metadata], self.outward)
        return codec_family(self.codec).build(options)

    def window(self, sinks: int, reserve: int, after: int = 0, policy: str = "window") -> Window:
        return policy_named(policy)(sinks, self.recent, self.flush, reserve, after)

    def _sharing(self) -> Sharing | None:
        by_word = {
            "token-head": Sharing(),
            "token": Sharing(channels=self.group),
            "token-all": Sharing(all_heads=True),
            "channel": Sharing(tokens=self.group or 1, channels=1),
            "chunk-head": Sharing(tokens=self.flush),
            "chunk": Sharing(tokens=self.flush, all_heads=True),
        }
        return by_word[self.sharing] if self.sharing else None

    def __str__(self) -> str:
        """Codec, sharing and options; the window is printed by the cache spec."""
        default_word = default_sharing(self.codec)
        word = "" if self.sharing == default_word else f"-{_WORDS[self.sharing or '']}"
        options = [f"g{self.group}"] if self.group else []
        options += ["sym"] if self.symmetric else []
        options += [self.metadata] if self.metadata != "fp16" else []
        options += [] if self.outward else ["near"]
        return self.codec + word + ("@" + ".".join(options) if options else "")


def default_sharing(codec: str) -> str | None:
    """8-bit floats share per token and head when no word is given; ints always name their word."""
    family = codec_family(codec)
    return "token-head" if family.scaled and not family.affine else None


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
    layers: tuple[tuple[LayerRange, CacheSpec], ...] = ()

    def __post_init__(self) -> None:
        _check_count("sinks", self.sinks, 0)
        _check_count("reserve", self.reserve, 0)
        _check_count("quantize_after", self.quantize_after, 0)
        policy_named(self.policy)
        for where, override in self.layers:
            if override.layers:
                raise QuantKVError(f"the override for layers {where} has overrides of its own")

    def __str__(self) -> str:
        from quantkv.spec.text import format_spec

        return format_spec(self)

    @property
    def name(self) -> str:
        """The preset's name where this spec is one, else the short string."""
        from quantkv.spec.named import presets

        return next((name for name, spec in presets().items() if spec == self), str(self))

    @property
    def is_raw(self) -> bool:
        return self.key.is_raw and self.value.is_raw

    @property
    def published_policy(self) -> bool:
        """Whether this is a preset whose sinks, window and flush rules are part of the published scheme."""
        from quantkv.spec.named import PUBLISHED

        return self.name in PUBLISHED

    @property
    def key_window(self) -> Window:
        return self.key.window(self.sinks, self.reserve, self.quantize_after, self.policy)

    @property
    def value_window(self) -> Window:
        return self.value.window(self.sinks, self.reserve, self.quantize_after, self.policy)

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
        from quantkv.spec.text import parse_spec

        overrides = tuple((LayerRange.parse(str(k)), parse_spec(v)) for k, v in layers.items())
        return replace(self, layers=self.layers + overrides)

    def bits_packed(
        self, *, head_dim: int, num_key_value_heads: int, dtype: torch.dtype = torch.float32
    ) -> float:
        """Bits per element of full pages, keys and values averaged, without per-layer overrides."""
        from quantkv.store import KEY_LANES, VALUE_LANES, page_layout

        bits = [
            page_layout(t.build(), num_key_value_heads, head_dim, dtype, lanes).bits_per_element
            for t, lanes in ((self.key, KEY_LANES), (self.value, VALUE_LANES))
        ]
        return sum(bits) / 2


MOST = 2**31 - 1
"""No length or group is larger: tensors could not be indexed by it."""


def _check_count(name: str, value: int | None, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise QuantKVError(f"{name} must be an integer of at least {least} and at most {MOST}, not {value!r}")
