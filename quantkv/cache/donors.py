"""Layers without keys and values of their own: which layer's they read."""

from __future__ import annotations

from transformers import PreTrainedConfig


def donor(config: PreTrainedConfig, layer: int) -> int | None:
    """The layer whose keys and values a layer reads; None where the config names none."""
    text = config.get_text_config(decoder=True)
    modes = getattr(text, "kv_sharing_modes", None)
    if modes is None or modes[layer] != "reuse":
        return None
    sources = getattr(text, "kv_source_layers", None)
    if sources is not None:
        return int(sources[layer])
    kinds = text.layer_types
    return max((i for i in range(layer) if modes[i] == "store" and kinds[i] == kinds[layer]), default=None)
