"""A cell: one number to make, as it was asked for, and the key of its row.

A cell holds what was asked. Its key, the hash of everything that determines the number, needs to know the
loaded model and the text too, so it is made later from the cell and a mapping of those facts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkv.arms.arm import BASELINE, Arm, spec_text
from quantkv.rows.kinds import known
from quantkv.rows.settings import ModelEntry


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One number to make, in the words of the sweep file; ``spec`` None is the ``DynamicCache`` arm. Two are
    equal only if they are the same object: a sweep has each once, and keeps what it knows of them by them."""

    kind: str
    model: ModelEntry
    label: str
    spec: Arm
    context: int
    batch: int = 1
    seed: int = 0
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec_string(self) -> str:
        return BASELINE if self.spec is None else spec_text(self.spec)

    @property
    def prefill(self) -> str:
        return str(self.protocol.get("prefill", "exact"))

    @property
    def part(self) -> str:
        """Which part of its kind, such as a task of retrieval; none for most kinds."""
        return str(self.protocol.get(known(self.kind).part) or "")

    @property
    def title(self) -> str:
        parts = [f"{self.kind}  {self.label}", f"context {self.context}"]
        parts += [f"batch {self.batch}"] if self.batch != 1 else []
        parts += [f"prefill {self.prefill}"] if self.prefill != "exact" else []
        parts += [self.part] if self.part else []
        return ", ".join(parts)

    def requested(self) -> dict[str, Any]:
        """The ``requested`` section of a row; the baseline always runs on sdpa."""
        model = self.model
        asked: dict[str, Any] = {"model": model.id, "revision": model.revision, "dtype": model.dtype}
        asked |= {"attn": "sdpa" if self.spec is None else model.attn}
        asked |= {"format": self.label, "spec": self.spec_string, "context": self.context}
        return asked | {"batch": self.batch, "seed": self.seed}

    def key(self, facts: Mapping[str, Any]) -> str:
        """SHA-256 over what was asked and ``facts``."""
        text = json.dumps(self.keyed(facts), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def keyed(self, facts: Mapping[str, Any]) -> list[Any]:
        """What the key is made of. Names decide nothing: two labels of one spec are one cell; model, text and
        threads enter as the fingerprint, tokens and count that ``facts`` holds."""
        asked = self.requested()
        kept = {name: asked[name] for name in ("dtype", "attn", "spec", "context", "batch")}
        protocol = {name: value for name, value in self.protocol.items() if name not in ("text", "threads")}
        return [self.kind, kept, protocol, dict(facts)]
