"""A peer: another project's cache by name, in this interpreter or another.

Names are short strings like those of formats: `peer:quanto-int4`, `peer:kvpress-knorm-0.5+int4-head`.

The quantized caches that transformers ships are `QuantizedCache` over quanto, HQQ, or plain 8-bit floats.
quanto and HQQ work in groups of 64 channels of one token and head. A prompt is quantized whole; afterwards up
to 127 tokens stay exact, and when there are 128 the whole cache is decoded and quantized once more. The 8-bit
float cache takes one scale per tensor from the first call and appends.

kvpress evicts: at the end of prefill each layer keeps a share of its keys and values, exactly.
`kvpress-knorm-0.5` removes half of them. Tokens decoded later are all kept, and positions go on from the
original length. What is left may be packed with one of our formats.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from quantkv.errors import QuantKVError
from quantkv.spec.specs import parse_spec
from quantkv.wording.suggestions import did_you_mean

if TYPE_CHECKING:
    from quantkv.spec.specs import CacheSpec

PREFIX = "peer:"
GROUP, RESIDUAL = 64, 128
PACKAGES = {"quanto": "optimum-quanto", "hqq": "hqq"}
# Axis 0 of quanto and axis 1 of HQQ both put 64 channels of one token and head into a group. HQQ's default
# axis 0 groups across tokens and heads and loses far more.
AXES = {"quanto": 0, "hqq": 1}
PRESSES = {
    "knorm": "KnormPress",
    "snapkv": "SnapKVPress",
    "streamingllm": "StreamingLLMPress",
    "tova": "TOVAPress",
    "expected-attention": "ExpectedAttentionPress",
    "keydiff": "KeyDiffPress",
}
"""Presses of kvpress that need nothing but a compression ratio."""
_PRESS_NAME = re.compile(rf"kvpress-(?P<press>{'|'.join(PRESSES)})-(?P<ratio>0\.\d+)")


@dataclass(frozen=True, slots=True)
class Stock:
    """A backend of `transformers.QuantizedCache`; `bits` None where it takes no options (fp8)."""

    backend: str
    bits: int | None

    @property
    def recipe(self) -> dict[str, Any]:
        """What the worker makes the cache from."""
        options: dict[str, Any] = {}
        if self.bits is not None:
            axis = AXES[self.backend]
            options = {"nbits": self.bits, "axis_key": axis, "axis_value": axis}
            options |= {"q_group_size": GROUP, "residual_length": RESIDUAL}
        return {"kind": "stock", "backend": self.backend, "options": options}

    @property
    def package(self) -> str | None:
        """What must be installed beside transformers."""
        return PACKAGES.get(self.backend)

    @property
    def policy(self) -> dict[str, int]:
        """The part of a row's effective section that says which tokens stay exact."""
        flush = RESIDUAL if self.bits is not None else 1
        exact = dict.fromkeys(("sinks", "recent_key", "recent_value"), 0)
        return exact | dict.fromkeys(("flush_key", "flush_value"), flush)

    @property
    def notes(self) -> list[str]:
        return ["every flush packs the whole cache again"] if self.bits is not None else []


STOCK = {
    "quanto-int4": Stock("quanto", 4),
    "quanto-int2": Stock("quanto", 2),
    "hqq-int8": Stock("hqq", 8),
    "hqq-int4": Stock("hqq", 4),
    "hqq-int2": Stock("hqq", 2),
    "transformers-fp8": Stock("fp8", None),
}
LEGAL = (*STOCK, *(f"kvpress-{press}-RATIO" for press in PRESSES))


@dataclass(frozen=True, slots=True)
class Press:
    """A press and the share of keys and values it removes."""

    name: str
    ratio: float

    package: ClassVar[str] = "kvpress"
    policy: ClassVar[None] = None

    @property
    def recipe(self) -> dict[str, Any]:
        return {"kind": "press", "press": PRESSES[self.name], "options": {"compression_ratio": self.ratio}}

    @property
    def notes(self) -> list[str]:
        return [f"{self.ratio:g} of the prompt's keys and values are dropped after prefill"]


@dataclass(frozen=True, slots=True)
class Peer:
    """`python`: the interpreter that has the peer's packages (None: this one). `on_top`: what packs the keys
    and values that a press leaves."""

    name: str
    made_by: Stock | Press
    python: str | None = None
    on_top: CacheSpec | None = None

    def __str__(self) -> str:
        """The canonical text; the same cache in another interpreter is another arm."""
        place = "@other" if self.python else ""
        return f"{PREFIX}{self.name}{place}" + (f"+{self.on_top}" if self.on_top else "")

    @property
    def label(self) -> str:
        return self.name + (f"+{self.on_top.name}" if self.on_top else "")

    @property
    def recipe(self) -> dict[str, Any]:
        return self.made_by.recipe

    @property
    def is_press(self) -> bool:
        return isinstance(self.made_by, Press)

    @property
    def packages(self) -> tuple[str, ...]:
        """What determines the peer's numbers, as package names."""
        return ("torch", "transformers", *filter(None, [self.made_by.package]))

    @property
    def engine(self) -> str:
        """What a row names as the maker of the cache."""
        return "kvpress" if isinstance(self.made_by, Press) else self.made_by.backend


def parse_peer(text: str, *, python: str | None = None, **policy: int | None) -> Peer:
    """A peer from its name, with or without `peer:`; `policy` is that of a format on top of a press.

    Raises QuantKVError naming the legal ones, and where there is no such interpreter.
    """
    name, plus, top = text.removeprefix(PREFIX).partition("+")
    made_by = STOCK.get(name) or _press(name)
    if made_by is None:
        legal = f"{', '.join(LEGAL)}, with 0 < RATIO < 1 such as 0.5"
        raise QuantKVError(f"unknown peer {name!r}; legal: {legal}{did_you_mean(name, LEGAL)}")
    if plus and not isinstance(made_by, Press):
        raise QuantKVError(f"{name} packs its own keys and values: a format on top needs a press (kvpress-…)")
    if python is not None and shutil.which(python) is None:
        raise QuantKVError(f"python: there is no interpreter {python!r}")
    return Peer(name, made_by, python, parse_spec(top, **policy) if plus else None)


def _press(name: str) -> Press | None:
    """The press that a name such as `kvpress-snapkv-0.5` stands for; None where it is none."""
    match = _PRESS_NAME.fullmatch(name)
    return Press(match["press"], float(match["ratio"])) if match and float(match["ratio"]) else None
