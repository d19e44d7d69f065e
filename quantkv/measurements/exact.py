"""The exact cache that formats are measured against: the prompt that all begin from, and the exact format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.instruments.huggingface import attention, forward, keeping_cache, stock_attention

REFERENCE = "exact"


def reference(model: Any) -> str:
    """The exact format; where every layer of a model slides it packs those, or it would pack none."""
    layers = QuantizedCache(model.config, f"{REFERENCE}+sliding").layers
    return REFERENCE if any(type(layer) is QuantizedLayer for layer in layers) else f"{REFERENCE}+sliding"


def prefilled(model: Any, ids: Tensor) -> tuple[DynamicCache, Tensor]:
    """A plain cache of the rows `[B, T]` after one call on stock attention, and the last logits, `[B, V]`."""
    cache = keeping_cache(model.config)
    with torch.inference_mode(), attention(model, stock_attention(model)):
        logits = forward(model, ids, cache)
    return cache, logits[:, -1]
