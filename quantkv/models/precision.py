"""The precision that a checkpoint is stored in, from its configuration."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]


def quantization_settings(config: Any) -> Settings | None:
    """The `quantization_config` as a mapping; None where there is none."""
    found = getattr(config, "quantization_config", None)
    return found if found is None or isinstance(found, dict) else found.to_dict()


def quantization_method(settings: Settings) -> str:
    method = settings.get("quant_method")
    return str(getattr(method, "value", method))


def describe_precision(config: Any) -> str:
    """``bfloat16``, ``4-bit awq``, ..."""
    if (settings := quantization_settings(config)) is not None:
        return _describe_quantization(settings)
    dtype = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return str(dtype or "float32").removeprefix("torch.")


def _describe_quantization(settings: Settings) -> str:
    bits = settings.get("bits") or settings.get("w_bit") or settings.get("weight_bits")
    if settings.get("load_in_4bit"):
        bits = 4
    elif settings.get("load_in_8bit"):
        bits = 8
    method = quantization_method(settings)
    return f"{bits}-bit {method}" if bits else method
