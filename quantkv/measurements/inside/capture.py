"""Seeing the queries, keys and values of every attention layer, one layer at a time.

The capture stands where a decode-exact pass stands (`quantkv.cache.hooks.SIMULATION`), so every model that
runs with `attn_implementation="quantkv"` can be looked into without code of its own. Attention goes on
exactly: each layer sees the inputs it has without quantization, so the error of one layer is never that of
another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantkv.cache.hooks import SIMULATION, fused_attention
from quantkv.decode_exact.one_pass import one_pass
from quantkv.engines import AttentionOptions
from quantkv.instruments.divergence import check_reference
from quantkv.instruments.huggingface import evaluating, forward


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer's attention was called with: query `[1, Hq, T, D]`, key `[1, H, T, D]`, value `[1, H, T,
    Dv]`, and the options of its attention."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    options: AttentionOptions


@dataclass(slots=True)
class _Capture:
    visit: Callable[[LayerCall], None]

    def begin_call(self, padding: Any, seen: int) -> None:
        """One unpadded call without a cache: nothing to note."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: AttentionOptions,
        told: Tensor | None,
    ) -> None:
        self.visit(LayerCall(layer, query, key, value, options))


def capture(model: Any, ids: Tensor, visit: Callable[[LayerCall], None]) -> None:
    """Run the model over ids `[T]` without a cache and show `visit` each layer; nothing is kept in between.

    Raises UnsupportedError where attention is not called with the keys and values that the model caches.
    """
    one_pass(model)
    looker = _Capture(visit)
    token = SIMULATION.set(looker)
    try:
        with torch.inference_mode(), evaluating(model), fused_attention(model):
            check_reference(forward(model, ids[None], keep=len(ids)), "of the text")
    finally:
        SIMULATION.reset(token)
