"""Copies of models whose first key projections have large biases in a few channels, as real ones may have."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM


def bias_keys(model: Any, layers: Sequence[int], size: float) -> None:
    """Add `size` to the two key channels of each head that RoPE turns most slowly.

    A bias there is nearly the same for every token, so softmax takes it away again: the model stays as good
    as it was, and only a cache that rounds keys is hurt.
    """
    width = model.model.layers[0].self_attn.head_dim
    for layer in layers:
        bias = model.model.layers[layer].self_attn.k_proj.bias.data
        bias[width // 2 - 1 :: width] += size
        bias[width - 1 :: width] += size


def with_key_biases(model: Any, layers: Sequence[int], size: float) -> Any:
    """A copy of a Llama model without biases that has them: zero, but for the keys of `layers`."""
    config = copy.deepcopy(model.config)
    config.attention_bias = True
    twin = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    twin.load_state_dict(model.state_dict(), strict=False)
    for name, parameter in twin.named_parameters():
        if name.endswith(".bias"):
            parameter.data.zero_()
    bias_keys(twin, layers, size)
    return twin.eval().requires_grad_(False)


def save_biased(model: Any, tokenizer: Any, folder: Path, layers: Sequence[int], size: float) -> Path:
    with_key_biases(model, layers, size).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
