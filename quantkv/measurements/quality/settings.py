"""The section `quality` of a sweep file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator

from quantkv.measurements.quality.protocols import Protocol, filled
from quantkv.rows.axes import Axes, KindSettings, formats
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry, NonNegative, OneOrMore, Positive, Section, TextSettings
from quantkv.wording.suggestions import not_one_of

PREFILLS = ("exact", "final", "stream", "chunk:<tokens>")


def _check_prefill(value: str) -> str:
    if value in PREFILLS[:3] or re.fullmatch(r"chunk:[1-9]\d*", value):
        return value
    raise ValueError(not_one_of(value, PREFILLS))


Prefill = Annotated[str, AfterValidator(_check_prefill)]


class QualityProtocol(Section):
    """Settings of ``quantkv.measurements.quality.protocols.Protocol``; a preset may stand for the mapping.

    ``whole`` N scores whole windows of N tokens, every one of the text unless ``windows`` says how many.
    """

    preset: str | None = None
    prefill: OneOrMore[Prefill] = ("exact",)
    score: Positive = 128
    windows: Positive | None = 16
    bos: Literal["per_window", "text", "none"] = "per_window"
    whole: Positive | None = None
    sinks: NonNegative | None = None
    recent: NonNegative | None = None
    scale_bf16: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        value = {"preset": value} if isinstance(value, str) else value
        return filled(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check(self) -> QualityProtocol:
        for prefill in self.prefill:
            self.with_prefill(prefill)
        return self

    def with_prefill(self, prefill: str) -> Protocol:
        """The protocol of the cells with one of the prefills."""
        return Protocol(**self.model_dump() | {"prefill": prefill})


class QualitySettings(KindSettings):
    kind = "quality"
    text: TextSettings = TextSettings(source="python-docs")
    protocol: QualityProtocol = QualityProtocol()

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        whole = self.protocol.whole is not None  # which leaves nothing for a seed to pick
        seeds = sweep.seeds[:1] if whole else sweep.seeds
        for prefill, seed, context in product(self.protocol.prefill, seeds, self.contexts(sweep)):
            protocol = {"text": self.text.label} | self.protocol.with_prefill(prefill).row()
            place: dict[str, Any] = {"model": model, "context": context, "seed": seed}
            for label, spec in formats(sweep):
                yield Cell(kind=self.kind, label=label, spec=spec, protocol=protocol, **place)

    def contexts(self, sweep: Axes) -> list[int]:
        """All contexts, or only the length of windows scored whole; an error where that is not among them."""
        protocol = self.protocol.with_prefill(self.protocol.prefill[0])
        return protocol.contexts(sweep.contexts, alone=sweep.kinds == ("quality",))

    def check(self, sweep: Axes) -> None:
        self.contexts(sweep)

    def tokens_after(self, sweep: Axes) -> int:
        return self.protocol.score if self.protocol.whole is None else 0
