"""The section `memory` of a sweep file."""

from __future__ import annotations

from typing import Literal

from quantkv.rows.settings import OneOrMore, Positive, Section

STEPS = 32
"""Tokens decoded after a prompt."""


class MemorySettings(Section):
    """``workers`` cells run side by side, each in its own process with its share of the threads."""

    isolate: Literal["process"] = "process"
    phases: OneOrMore[Literal["prefill", "decode"]] = ("prefill", "decode")
    workers: Positive = 1
    formats: OneOrMore[str] | None = None
