"""The arms of retrieval and generation: formats that a real packed cache holds, and the exact one."""

from __future__ import annotations

from typing import Any

from quantkv.arms.arm import Format, parse_format
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.errors import QuantKVError
from quantkv.spec.specs import CacheSpec

REFERENCE = "exact"


def reference(model: Any) -> str:
    """The exact format; where every layer of a model slides it packs those, or it would pack none."""
    layers = QuantizedCache(model.config, f"{REFERENCE}+sliding").layers
    return REFERENCE if any(type(layer) is QuantizedLayer for layer in layers) else f"{REFERENCE}+sliding"


def spec_of(label: str, given: Format) -> CacheSpec:
    """The spec of an arm; QuantKVError for what no packed cache of ours holds."""
    parsed = parse_format(given)
    if not isinstance(parsed, CacheSpec):
        raise QuantKVError(
            f"{label} is no packed format; retrieval and generation run a real cache: name a preset or a spec"
        )
    return parsed
