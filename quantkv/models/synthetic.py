"""Tiny random models and a byte tokenizer: what tests and dry runs use where no checkpoint is at hand.

Weights are drawn with a standard deviation of 0.15, large enough that attention is far from uniform and a
wrong cache shows in the logits. ``random-llama:num_hidden_layers=4,head_dim=64`` overrides config fields.
"""

from __future__ import annotations

import difflib
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from quantkv.errors import QuantKVError
from quantkv.quiet import quiet

_SHARED: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 131072,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GEMMA3: dict[str, Any] = {
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 32,
}
_GPT2: dict[str, Any] = {
    "vocab_size": 256,
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 8192,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
}
RANDOM_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "random-llama": ("llama", _SHARED),
    "random-qwen2": ("qwen2", _SHARED),
    "random-qwen3": ("qwen3", _SHARED),
    "random-mistral": ("mistral", _SHARED | {"sliding_window": None}),
    "random-gemma3": ("gemma3_text", _SHARED | _GEMMA3),
    "random-gpt2": ("gpt2", _GPT2),
}


def random_model(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A tiny model of the named family; equal seeds give equal weights in every dtype."""
    config = _config(name, overrides)
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _fill_biases(model)
    return model.to(dtype).eval().requires_grad_(False)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token id = byte value, no special tokens; decodes UTF-8."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def _config(name: str, overrides: dict[str, Any]) -> Any:
    family, _, options = name.partition(":")
    if family not in RANDOM_MODELS:
        raise QuantKVError(f"unknown random model {family!r}; legal names: {', '.join(RANDOM_MODELS)}")
    model_type, defaults = RANDOM_MODELS[family]
    settings = defaults | _parse_options(options) | overrides
    known = AutoConfig.for_model(model_type)
    for key in settings:
        if key != "head_dim" and not hasattr(known, key):
            raise QuantKVError(f"{family} has no option {key!r}{_nearest(key, list(known.to_dict()))}")
    if "layer_types" in settings and len(settings["layer_types"]) != settings["num_hidden_layers"]:
        kinds, count = settings["layer_types"], settings["num_hidden_layers"]
        settings["layer_types"] = [kinds[i % len(kinds)] for i in range(count)]
    try:
        return AutoConfig.for_model(model_type, **settings)
    except Exception as error:  # configs validate themselves with errors of many kinds
        reason = str(error).strip().splitlines()[-1].strip()
        raise QuantKVError(f"{name} cannot be made: {reason}") from error


def _parse_options(options: str) -> dict[str, Any]:
    pairs = [item.partition("=") for item in options.split(",") if item]
    for key, equals, _ in pairs:
        if not equals:
            raise QuantKVError(f"model option {key!r} has no value; write name:key=value,key=value")
    return {key.strip(): yaml.safe_load(value) for key, _, value in pairs}


def _nearest(key: str, legal: list[str]) -> str:
    close = difflib.get_close_matches(key, legal, n=3)
    return f"; did you mean {', '.join(close)}?" if close else f"; legal: {', '.join(sorted(legal))}"


def _fill_biases(model: torch.nn.Module) -> None:
    """Libraries start biases at zero, which would hide a cache that forgets them."""
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.5)
