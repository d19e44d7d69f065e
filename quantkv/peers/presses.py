"""Eviction by kvpress: at the end of prefill each layer keeps a share of its keys and values, exactly.

`kvpress-knorm-0.5` removes half of them. Tokens decoded later are all kept, and positions go on from the
original length. What is left may be packed with one of our formats: `kvpress-knorm-0.5+int4-head`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

PRESSES = {
    "knorm": "KnormPress",
    "snapkv": "SnapKVPress",
    "streamingllm": "StreamingLLMPress",
    "tova": "TOVAPress",
    "expected-attention": "ExpectedAttentionPress",
    "keydiff": "KeyDiffPress",
}
"""Presses of kvpress that need nothing but a compression ratio."""
_NAME = re.compile(r"kvpress-(?P<press>[a-z-]+)-(?P<ratio>0\.\d+)")


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


def find_press(name: str) -> Press | None:
    """The press that a name such as `kvpress-snapkv-0.5` stands for; None where it is none."""
    match = _NAME.fullmatch(name)
    if match is None or match["press"] not in PRESSES or float(match["ratio"]) == 0:
        return None
    return Press(match["press"], float(match["ratio"]))
