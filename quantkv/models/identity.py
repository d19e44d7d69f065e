"""Which model was it? A name can move; results are keyed by the precision and a fingerprint of the weights.

The weights' own precision is that of the checkpoint, not of the tensors in memory: a 4-bit GGUF run in
float32 is still a 4-bit model, and every caption must say so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch

from quantkv.models.names import is_built_in

SAMPLES_PER_TENSOR = 64
WORDS = 1 << 16
"""8-byte words in a block of a checksum."""
ODD = 0x1E3779B97F4A7C15
VOLATILE_CONFIG = {
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_internal",
    "_commit_hash",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}

Settings = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Where a model came from, kept on the model by ``load_model``."""

    model: str
    revision: str | None
    weights: str


def model_identity(model: Any) -> dict[str, str | None]:
    """``model``, ``revision``, ``weights`` (own precision), ``fingerprint`` (config and weights)."""
    source = getattr(model, "_quantkv_source", None) or _source_of_foreign(model)
    return asdict(source) | {"fingerprint": fingerprint(model)}


def fingerprint(model: Any) -> str:
    """SHA-256 over the configuration and every parameter and buffer: a fixed sample of each where the name
    pins them (packaged and random models), else a checksum of all their bytes."""
    source = getattr(model, "_quantkv_source", None)
    pinned = source is not None and is_built_in(source.model)
    content = _sample if pinned else _checksum
    config = json.dumps(_without_volatile(model.config.to_dict()), sort_keys=True, default=str)
    digest, tensors = (
        hashlib.sha256(config.encode()),
        dict(chain(model.named_parameters(), model.named_buffers())),
    )
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(b"meta" if tensor.is_meta or tensor.numel() == 0 else content(tensor.detach()))
    return digest.hexdigest()


def _source_of_foreign(model: Any) -> Source:
    """A model that somebody else loaded: all that is known is what its configuration remembers."""
    config = model.config
    name = getattr(config, "_name_or_path", "") or type(model).__name__
    return Source(name, getattr(config, "_commit_hash", None), describe_precision(config))


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _without_volatile(v) for k, v in value.items() if k not in VOLATILE_CONFIG}
    return value


def _sample(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLES_PER_TENSOR)].to("cpu", torch.float64).numpy().tobytes()


def _checksum(tensor: torch.Tensor) -> bytes:
    """Of all bytes, made where they are: 8-byte words, each times an odd number of its place, summed up block
    after block, all modulo 2^64."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 8 or raw.storage_offset() % 8:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 8))
    total, places = torch.zeros((), dtype=torch.int64, device=raw.device), _places(raw.device)
    for words in raw.view(torch.int64).split(WORDS):
        total = total * ODD + (words * places[: len(words)]).sum()
    return int(total).to_bytes(8, "little", signed=True)


def _places(device: torch.device) -> torch.Tensor:
    mixed = torch.arange(1, WORDS + 1, device=device) * ODD
    return (mixed ^ (mixed >> 31)) * ODD | 1


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
