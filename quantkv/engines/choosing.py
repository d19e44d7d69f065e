"""One protocol for all engines, and which of them serves a method."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from quantkv.codecs import Stored
from quantkv.engines.cpu import Cpu
from quantkv.engines.inputs import PLAIN, AttentionOptions, Readable
from quantkv.engines.reference import Reference
from quantkv.store import View
from quantkv.store.pages import PageEngine


class Engine(PageEngine, Protocol):
    """What the cache asks of an engine beside what a store does."""

    def refuses(self, stored: Stored, device: torch.device) -> str | None:
        """Why it cannot serve a method at its place, in half a sentence; None where it can."""

    def attend(self, query: Tensor, key: Readable, value: Readable, options: AttentionOptions) -> Tensor:
        """Attention of `query` `[B, Hq, Q, D]` over packed keys and values: `[B, Hq, Q, Dv]` in its dtype."""


CPU: Engine = Cpu()
REFERENCE: Engine = Reference()
ENGINES: tuple[Engine, ...] = (CPU, REFERENCE)
"""The fastest first; the last one serves everything."""


def engine_for(stored: Stored, device: torch.device) -> tuple[Engine, str]:
    """The engine that serves a method on a device, and why none before it does (empty for the first)."""
    reasons = []
    for engine in ENGINES:
        reason = engine.refuses(stored, device)
        if reason is None:
            break
        reasons.append(reason)
    return engine, "; ".join(reasons)


def attend(query: Tensor, key: Readable, value: Readable, options: AttentionOptions = PLAIN) -> Tensor:
    """Attention of `query` `[B, Hq, Q, D]` over packed keys and values: `[B, Hq, Q, Dv]` in its dtype."""
    engine = REFERENCE
    if isinstance(key, View) and isinstance(value, View):
        same = type(key.pages.engine) is type(value.pages.engine)
        engine = cast(Engine, key.pages.engine) if same else REFERENCE
    return engine.attend(query, key, value, options)
