"""How a quality number is made, as one object: the protocol, and its presets for rows beside papers'.

`gptq-2048` cuts the text as GPTQ's script does (Frantar et al. 2022): consecutive windows of 2048 tokens,
each scored whole, a BOS only where the tokenizer itself puts one at the head of the text. A plain forward
pass, as that script runs it, would read no cache: here a window is run as `stream` (token by token) unless
`final` or `chunk:N` is asked for. `fake-quant` is the setting of simulators: no exact sinks, no exact window,
and a prompt that reads its own packed values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quantkv.data import bos_id
from quantkv.errors import QuantKVError
from quantkv.instruments.windows import WholeWindows, Windows, check_counts, make_windows, whole_windows
from quantkv.policy import Window
from quantkv.spec.specs import CacheSpec

PRESETS: dict[str, dict[str, Any]] = {
    "gptq-2048": {"whole": 2048},
    "fake-quant": {"prefill": "final", "sinks": 0, "recent": 0},
}
WHOLE: dict[str, Any] = {"prefill": "stream", "windows": None, "bos": "text"}
"""Defaults where windows are scored whole."""
BOS = ("per_window", "text", "none")
WindowPlan = Windows | WholeWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a quality row must say of how it was made, beside model, text, context and seed.

    `whole`: windows hold this many tokens and are scored whole, where None is a prompt of C tokens and
    `score` scored ones. `windows` None takes every window of the text. `sinks` and `recent` overrule each
    format's own. `bos`: one per window, one at the head of the text where the tokenizer itself puts one, or
    none. `scale_bf16` also runs the windows through the model in bfloat16.
    """

    preset: str | None = None
    prefill: str = "exact"
    score: int = 128
    windows: int | None = 8
    bos: str = "per_window"
    whole: int | None = None
    sinks: int | None = None
    recent: int | None = None
    scale_bf16: bool = False

    def __post_init__(self) -> None:
        self._check_counts()
        if self.bos not in BOS:
            raise QuantKVError(f"bos {self.bos!r}; legal: {', '.join(BOS)}")
        if self.whole is None and (self.windows is None or self.bos == "text"):
            raise QuantKVError("only windows scored whole take every window of a text, or its one BOS")
        if self.whole is None:
            return
        if self.whole < 2 or (self.score, self.bos == "per_window") != (self.whole - 1, False):
            raise QuantKVError(
                f"windows of {self.whole} tokens scored whole have score {self.whole - 1} and bos text or "
                f"none, not score {self.score} and bos {self.bos}; the least is 2 tokens"
            )
        if self.prefill == "exact":
            raise QuantKVError(
                "prefill exact reads no packed value in windows that are scored whole; "
                "legal: final, stream, chunk:<tokens>"
            )

    def _check_counts(self) -> None:
        for least, names in ((1, ("windows", "whole")), (0, ("sinks", "recent"))):
            given = {name: getattr(self, name) for name in names}
            check_counts(least, **{name: value for name, value in given.items() if value is not None})
        check_counts(score=self.score)
        if not isinstance(self.scale_bf16, bool):
            raise QuantKVError(f"scale_bf16 must be True or False, got {self.scale_bf16!r}")

    def row(self) -> dict[str, Any]:
        """The settings that are given, for the protocol section of a row."""
        return {
            name: value for name, value in asdict(self).items() if value is not None and value is not False
        }

    def plan(self, ids: Tensor, tokenizer: Any, *, span: int, seed: int = 0) -> WindowPlan:
        """The windows of a text's ids `[T]`, made without special tokens; `span` is the largest context."""
        bos = bos_id(tokenizer) if self.bos_found(tokenizer) != "none" else None
        if self.bos == "text" and bos is not None:
            ids, bos = torch.cat([ids.new_tensor([bos]), ids]), None
        return self.windows_of(ids, bos, span=span, seed=seed)

    def windows_of(self, ids: Tensor, bos: int | None, *, span: int, seed: int = 0) -> WindowPlan:
        """The windows of ids as they are, each begun with the BOS where there is one."""
        if self.whole is None:
            assert self.windows is not None, "checked at construction"
            options = {"score": self.score, "windows": self.windows, "seed": seed}
            return make_windows(ids, span=span, bos_id=bos, **options)
        self.check_context(span)
        if bos is not None:
            raise QuantKVError(f"protocol {self.preset} puts no BOS into its windows: leave bos_id out")
        return whole_windows(ids, length=self.whole, windows=self.windows)

    def bos_found(self, tokenizer: Any) -> str:
        """Where a BOS stands indeed: `none` where the tokenizer has none or, for `text`, adds none itself."""
        bos = bos_id(tokenizer)
        if bos is None or (self.bos == "text" and tokenizer("a")["input_ids"][0] != bos):
            return "none"
        return self.bos

    def overrule_spec(self, spec: CacheSpec) -> CacheSpec:
        """The spec with this protocol's sinks and recent window, per-layer overrides included."""
        changed: dict[str, Any] = {} if self.sinks is None else {"sinks": self.sinks}
        if self.recent is not None:
            changed |= {name: replace(getattr(spec, name), recent=self.recent) for name in ("key", "value")}
        layers = tuple((where, self.overrule_spec(own)) for where, own in spec.layers)
        return replace(spec, layers=layers, **changed)

    def overrule_window(self, window: Window) -> Window:
        """The same for the window of a plain function."""
        given = {"sinks": self.sinks, "recent": self.recent}
        return replace(window, **{name: value for name, value in given.items() if value is not None})

    def prompt(self, context: int) -> int:
        """How many tokens the prefill's calls hold: all queries of a window scored whole."""
        return context if self.whole is None else self.whole - 1

    def first_scored(self, context: int) -> int:
        """Position of the first query whose target is scored."""
        return context if self.whole is None else 0

    def contexts(self, given: Sequence[int], *, alone: bool) -> list[int]:
        """The contexts at which quality is measured: those given, or the length of a window scored whole.

        That length must be among them; others may stand beside it for kinds other than quality (not `alone`).
        """
        if self.whole is None:
            return list(given)
        if self.whole not in given or (alone and set(given) != {self.whole}):
            self._refuse_context(", ".join(map(str, given)))
        return [self.whole]

    def check_context(self, context: int) -> None:
        """Raise where a window scored whole is asked for with another context than its length."""
        if self.whole not in (None, context):
            self._refuse_context(context)

    def _refuse_context(self, given: object) -> None:
        raise QuantKVError(
            f"protocol {self.preset} scores whole windows of {self.whole} tokens: give the context "
            f"{self.whole}, not {given}"
        )


def make_protocol(given: str | Mapping[str, Any] | Protocol | None = None, **changes: Any) -> Protocol:
    """A protocol from a preset's name, settings (with or without `preset`) or nothing; a change that is None
    is none."""
    changes = {name: value for name, value in changes.items() if value is not None}
    if isinstance(given, Protocol):
        return replace(given, **changes)
    if not isinstance(given, str | Mapping | None):
        raise QuantKVError(f"protocol {given!r}; legal: {', '.join(PRESETS)}, or a mapping of settings")
    settings = filled({"preset": given} if isinstance(given, str) else {**(given or {})}) | changes
    unknown = sorted(set(settings) - set(Protocol.__slots__))
    if unknown:
        raise QuantKVError(
            f"protocol: unknown setting {unknown[0]!r}; legal: {', '.join(Protocol.__slots__)}"
        )
    return Protocol(**settings)


def filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings laid over those of the preset they name, and over what windows scored whole imply."""
    name = settings.get("preset")
    if name is not None and name not in PRESETS:
        raise QuantKVError(f"unknown protocol {name!r}; legal: {', '.join(PRESETS)}")
    preset = PRESETS[name] if name is not None else {}
    merged = preset | dict(settings)
    for fixed in ("whole", "sinks", "recent"):
        if fixed in preset and merged[fixed] != preset[fixed]:
            raise QuantKVError(
                f"protocol {name} means {fixed} {preset[fixed]}: for {merged[fixed]} leave the preset out"
            )
    whole = merged.get("whole")
    if whole is None:
        return merged
    check_counts(whole=whole)
    return WHOLE | {"score": whole - 1} | merged
