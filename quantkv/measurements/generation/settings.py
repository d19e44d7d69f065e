"""The section `generation` of a sweep file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quantkv.measurements.generation.prompts import PROMPTS
from quantkv.rows.settings import OneOrMore, Positive, Section, TextSettings


class GenerationSettings(Section):
    """``tokens`` generated after each of ``prompts`` prompts; the last two settings are those of sampling."""

    tokens: Annotated[int, Field(strict=True, ge=2)] = 256
    prompts: Positive = PROMPTS
    mode: OneOrMore[Literal["greedy", "sample"]] = ("greedy",)
    text: TextSettings = TextSettings(source="python-docs")
    temperature: Annotated[float, Field(gt=0)] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95

    def protocol(self, mode: str) -> dict[str, Any]:
        """The settings that matter in a mode."""
        chance = {"temperature": self.temperature, "top_p": self.top_p} if mode == "sample" else {}
        return {
            "text": self.text.label,
            "mode": mode,
            "tokens": self.tokens,
            "prompts": self.prompts,
        } | chance
