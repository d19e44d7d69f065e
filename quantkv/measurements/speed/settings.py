"""The section `speed` of a sweep file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quantkv.rows.settings import OneOrMore, Positive, Section


class SpeedSettings(Section):
    """``formats`` limits the kind to some of the sweep's formats, as in that of memory."""

    baseline: Literal["dynamic"] = "dynamic"
    rounds: Positive = 10
    block: Annotated[int, Field(strict=True, ge=2)] = 8
    fill: Literal["prefill", "synthetic"] = "prefill"
    threads: Positive | None = None
    formats: OneOrMore[str] | None = None
