"""The exact prompt that all arms of a measurement begin from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.instruments.huggingface import attention, forward, keeping_cache, stock_attention


def prefilled(model: Any, ids: Tensor) -> tuple[DynamicCache, Tensor]:
    """A plain cache of the rows `[B, T]` after one call on stock attention, and the last logits, `[B, V]`."""
    cache = keeping_cache(model.config)
    with torch.inference_mode(), attention(model, stock_attention(model)):
        logits = forward(model, ids, cache)
    return cache, logits[:, -1]
