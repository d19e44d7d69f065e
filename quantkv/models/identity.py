"""Which model was it? A name can move; results are keyed by the precision and a fingerprint of the weights.

The weights' own precision is that of the checkpoint, not of the tensors in memory: a 4-bit GGUF run in
float32 is still a 4-bit model, and every caption must say so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from quantkv.models.names import is_built_in
from quantkv.models.precision import describe_precision

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


@dataclass(frozen=True)
class Source:
    """Where a model came from, kept on the model by ``load_model``."""

    model: str
    revision: str | None
    weights: str

    def attach(self, model: torch.nn.Module) -> None:
        model._quantkv_source = self  # type: ignore[assignment]


def model_identity(model: Any) -> dict[str, str | None]:
    """``model``, ``revision``, ``weights`` (own precision), ``fingerprint`` (config and weights)."""
    source = getattr(model, "_quantkv_source", None) or _source_of_foreign(model)
    return {
        "model": source.model,
        "revision": source.revision,
        "weights": source.weights,
        "fingerprint": fingerprint(model),
    }


def fingerprint(model: Any) -> str:
    """SHA-256 over the configuration and every parameter and buffer: a fixed sample of each where the name
    pins them (packaged and random models), else a checksum of all their bytes."""
    source = getattr(model, "_quantkv_source", None)
    pinned = source is not None and is_built_in(source.model)
    content = _sample if pinned else _checksum
    digest = hashlib.sha256(_stable_config(model.config).encode())
    for name, tensor in sorted(
        chain(model.named_parameters(), model.named_buffers()), key=lambda item: item[0]
    ):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(b"meta" if tensor.is_meta or tensor.numel() == 0 else content(tensor.detach()))
    return digest.hexdigest()


def _source_of_foreign(model: Any) -> Source:
    """A model that somebody else loaded: all that is known is what its configuration remembers."""
    config = model.config
    name = getattr(config, "_name_or_path", "") or type(model).__name__
    return Source(name, getattr(config, "_commit_hash", None), describe_precision(config))


def _stable_config(config: Any) -> str:
    return json.dumps(_without_volatile(config.to_dict()), sort_keys=True, default=str)


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
