"""Whether a checkpoint held the whole model: what it lacks, transformers draws at random and tells a log."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from quantkv.errors import QuantKVError

SHOWN = 3
ADAPTER_FILE = "adapter_config.json"
MERGE = "merge the adapter into its base model (peft: merge_and_unload, then save_pretrained) and load that"
COMPUTED = re.compile(r"inv_freq$")
"""Missing, but made from the configuration."""
LEFTOVER = re.compile(
    r"(^|\.)(masked_bias|attn\.bias|attention\.bias|causal_mask|.*inv_freq"
    r"|[kqv]_scale|kv_scale|input_scale|output_scale)$"
)
"""In layers of old checkpoints, or for caches of other engines; no weights of the model."""


def check_loaded(name: str, model: Any, info: Mapping[str, Any]) -> None:
    """Refuse a model of which weights are missing, or left out although it has a place for them; say what
    else was left out. ``info`` is what ``from_pretrained(output_loading_info=True)`` returns, which leaves
    tied weights and those that the model's class ignores aside."""
    if getattr(model, "_hf_peft_config_loaded", False):
        refuse_adapter(name)
    missing = sorted(key for key in info["missing_keys"] if not COMPUTED.search(key))
    sizes = {f"{key} {_shape(held)} for {_shape(wanted)}" for key, held, wanted in info["mismatched_keys"]}
    unexpected = sorted(info["unexpected_keys"])
    strange = [key for key in unexpected if _matters(model, key)]
    if missing or sizes or strange:
        lists = {"missing": missing, "of another shape": sorted(sizes)}
        lists["not the model's"] = unexpected if missing else strange
        parts = [f"{len(keys)} {what} ({_some(keys)})" for what, keys in lists.items() if keys]
        trouble = f"{name} is not the whole of a {type(model).__name__}: weights are {', '.join(parts)}"
        raise QuantKVError(f"{trouble}; {_advice(missing, unexpected)}")
    if unexpected:
        left_out = f"{len(unexpected)} weights are left out, as the model has no place for them"
        say(f"{name}: {left_out}: {_some(unexpected)}")
    _check_finite(name, model)


def refuse_adapter(name: str) -> None:
    raise QuantKVError(f"{name} is an adapter ({ADAPTER_FILE}), not a whole model; {MERGE}")


def say_heard(name: str, heard: Iterable[logging.LogRecord]) -> None:
    """What transformers warned of, save its report on weights, of which ``check_loaded`` has spoken."""
    for words in (record.getMessage() for record in heard if record.levelno == logging.WARNING):
        if "LOAD REPORT" not in words:
            say(f"{name}: transformers warns: {' '.join(words.split())}")


def say(words: str) -> None:
    """Once for each wording, as Python does by default."""
    warnings.warn(words, stacklevel=2)


def _matters(model: Any, key: str) -> bool:
    """Whether a weight that was left out belongs to something the model computes: a layer that it has, or a
    module with weights of its own. Quantized checkpoints keep more in their layers than is read."""
    if "lora_" in key or ".base_layer." in key:
        return True
    if LEFTOVER.search(key) or getattr(model, "hf_quantizer", None) is not None:
        return False
    inside = _module_of(model, key)
    own = next(model.get_submodule(inside).parameters(recurse=False), None) if inside else None
    return own is not None or any(part.isdigit() for part in inside.split("."))


def _module_of(model: Any, key: str) -> str:
    """The name of the innermost module of the model on the way to a weight, "" where there is none."""
    known = {name for name, _ in model.named_modules()}
    prefix = model.base_model_prefix
    for path in (key, f"{prefix}.{key}", key.removeprefix(f"{prefix}.")):
        parts = path.split(".")[:-1]
        while parts and ".".join(parts) not in known:
            parts.pop()
        if parts:
            return ".".join(parts)
    return ""


def _advice(missing: list[str], unexpected: list[str]) -> str:
    pairs = ((key, lacking) for key in unexpected for lacking in missing if key.endswith(lacking))
    prefixes = {key.removesuffix(lacking) for key, lacking in pairs}
    if len(prefixes) == 1:
        return f"its names begin with {prefixes.pop()!r}: save the model itself, not what wraps it"
    if any("lora_" in key or ".base_layer." in key for key in unexpected):
        return MERGE
    return "nothing is measured on weights that are not the checkpoint's"


def _check_finite(name: str, model: Any) -> None:
    wrong = [key for key, tensor in model.named_parameters() if not _finite(tensor)]
    if wrong:
        say(f"{name}: {len(wrong)} weights hold NaN or infinities: {_some(wrong)}")


def _finite(tensor: torch.Tensor) -> bool:
    if tensor.is_meta or not tensor.is_floating_point() or tensor.itemsize < 2 or not tensor.numel():
        return True
    return all(bool(end.isfinite()) for end in torch.aminmax(tensor.detach()))


def _some(keys: Iterable[str]) -> str:
    keys = list(keys)
    return ", ".join(keys[:SHOWN]) + (", …" if len(keys) > SHOWN else "")


def _shape(sizes: Iterable[int]) -> str:
    return "×".join(map(str, sizes))
