"""The section `generation` of a sweep file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from quantkv.rows.axes import Axes, PackedSettings
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry, OneOrMore, Positive, TextSettings

PROMPTS = 4


class GenerationSettings(PackedSettings):
    """``tokens`` generated after each of ``prompts`` prompts; the last two settings are those of sampling."""

    kind = "generation"
    tokens: Annotated[int, Field(strict=True, ge=2)] = 256
    prompts: Positive = PROMPTS
    mode: OneOrMore[Literal["greedy", "sample"]] = ("greedy",)
    text: TextSettings = TextSettings(source="python-docs")
    temperature: Annotated[float, Field(gt=0)] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        for mode in self.mode:
            yield from self.packed_cells(sweep, model, self.protocol(mode))

    def protocol(self, mode: str) -> dict[str, Any]:
        """The settings that matter in a mode."""
        asked = {"text": self.text.label, "mode": mode, "tokens": self.tokens, "prompts": self.prompts}
        return asked | ({"temperature": self.temperature, "top_p": self.top_p} if mode == "sample" else {})

    def tokens_after(self, sweep: Axes) -> int:
        return self.tokens
