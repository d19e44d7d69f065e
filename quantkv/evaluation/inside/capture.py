"""Seeing the queries, keys and values of every attention layer, one layer at a time.

The capture stands where a decode-exact pass stands (`quantkv.hooks.SIMULATION`), so every model that can run
with `attn_implementation="quantkv"` can be looked into without code of its own. Attention goes on exactly:
each layer sees the inputs it has without quantization, so the error of one layer is never that of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantkv.errors import UnsupportedError
from quantkv.evaluation.huggingface import forward
from quantkv.hooks import SIMULATION, fused_attention


@dataclass(frozen=True, slots=True)
class Seen:
    """What one layer's attention was called with: query `[1, Hq, T, D]`, key `[1, H, T, D]`, value `[1, H, T,
    Dv]`, and the options of the engines (mask, causal, scaling, softcap, sink_logits)."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]


@dataclass(slots=True)
class _Capture:
    visit: Callable[[Seen], None]
    count: int = 0

    def begin_call(self, padding: Any, seen: int) -> None:
        """One unpadded call without a cache: nothing to note."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> None:
        self.count += 1
        self.visit(Seen(layer, query, key, value, options))


def capture(model: Any, ids: Tensor, visit: Callable[[Seen], None]) -> None:
    """Run the model over ids `[T]` without a cache and show `visit` each layer; nothing is kept in between.

    Raises UnsupportedError where the model's attention does not go through the registered function.
    """
    looker = _Capture(visit)
    token = SIMULATION.set(looker)
    try:
        with torch.inference_mode(), fused_attention(model):
            forward(model, ids[None])
    finally:
        SIMULATION.reset(token)
    if not looker.count:
        raise UnsupportedError(
            f"{type(model).__name__} calls no registered attention function: its keys and values stay hidden"
        )
