"""Which model families a packed cache serves, and how: found by running each at tiny size with the lossless
codec.

For every causal language model that transformers knows, a two-layer random model is run on a `DynamicCache`
and on a `QuantizedCache`; their logits must agree. What the layers report decides the row:

    fused          attention reads the pages
    decoding       correct through handles that decode on use (the model computes attention itself)
    partly         some layers are quantized, the others stay exact
    exact only     no layer can be quantized
    refused        the cache does not serve the family; the reason says why
    not tried      transformers itself could not run the tiny model
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quantkv.cache.names import IMPLEMENTATION, cache_argument
from quantkv.cache.quantized import QuantizedCache
from quantkv.decode_exact.simulate import simulate
from quantkv.errors import UnsupportedError
from support.modes import MODES, ModeResults, compare_modes, error_line

INTRODUCTION = f"""\
# Which models

Made by `make support`: every causal language model of the installed transformers is built with two
layers and random weights, and run on a `DynamicCache` and on a lossless `QuantizedCache` (prefill,
single steps, a chunk of eight); their logits agree within 1e-4 of the largest.

- **fused**: attention reads the pages.
- **decoding**: correct through handles that decode on use, because the model computes attention itself
  or changes keys and values after caching them (multi-head latent attention).
- **partly**: some layers are quantized; the others stay exact, for the reason given.
- **exact only**: no layer can be quantized; `QuantizedCache` says so when it is made.
- **not tried**: transformers could not run the tiny model on a `DynamicCache`, for the reason given.

**Modes** tells in how many ways of generating the lossless cache gave the tokens of a `DynamicCache`
(in float64, through the fused attention), of those that the family can do on a `DynamicCache` at all:
{fill(", ".join(MODES) + ".", 100)} What is missing is listed below the table.

Layers with a sliding window are packed here (`+sliding`); without it they stay exact. Encoder–decoder
models (T5, BART) take `EncoderDecoderCache(QuantizedCache(config, spec), QuantizedCache(config,
spec))`; padding of the encoder's input is on the right and is packed with the row, so formats that
share scales along tokens see it in the last group.

"""
NO_PASS = "Served, but refused by what measures in one pass (`simulate`, quality rows, `check`, `inspect`):"
SPEC = "exact+r8+f4+s2+k8+sliding"
MODES_SPEC = "exact+r8+f16+s2+k8+sliding"
CALLS = (20, *[1] * 12, 8)
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit."""
MAX_PARAMETERS = 30_000_000
_SMALL: dict[str, Any] = {
    "vocab_size": 128,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size"), 64),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "decoder_ffn_dim", "ffn_hidden_size", "n_inner"), 64
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads", "n_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.15,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 256),
    "sliding_window": 16,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    "qk_rope_head_dim": 8,
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
}
_OWN: dict[str, dict[str, Any]] = {
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {"layer_types": ["linear_attention", "full_attention"]},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 16,
    },
    "gemma4_text": {
        "per_layer_config": {1: {"head_dim": 32}},
        "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 16,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "kimi_linear": {"linear_head_dim": 16, "linear_num_heads": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_d_state": 8},
}


@dataclass(frozen=True, slots=True)
class Support:
    """How one family is served."""

    family: str
    status: str
    quantized: int = 0
    layers: int = 0
    reason: str = ""
    modes: ModeResults | None = None
    no_pass: str = ""
    """Why a decode-exact pass refuses it."""


def survey(families: Iterable[str] | None = None) -> Iterator[Support]:
    """A row per family, all causal language models of the installed transformers by default."""
    for family in families or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        yield examine(family)


def examine(family: str) -> Support:
    """Run the family at tiny size on both caches: a few calls, then every mode of generating."""
    found = _run(family)
    if not found.layers:
        return found
    model = tiny_model(family)
    return replace(found, modes=compare_modes(model, MODES_SPEC), no_pass=why_no_pass(model))


def why_no_pass(model: Any) -> str:
    """Why a decode-exact pass of the model is refused; empty where it runs."""
    try:
        with torch.no_grad(), simulate(model, SPEC, prefill=CALLS[0]):
            model(input_ids=_ids(), use_cache=False)
    except UnsupportedError as error:
        return str(error).partition("decode-exact pass: ")[2] or str(error)
    return ""


def _run(family: str) -> Support:
    ids = _ids()
    try:
        model = tiny_model(family)
        expected = _logits(model, ids, DynamicCache(config=model.config))
    except Exception as error:
        return Support(family, "not tried", reason=error_line(error))
    try:
        cache = QuantizedCache(model.config, SPEC)
    except UnsupportedError as error:
        return Support(family, "exact only", reason=str(error).partition("of this model: ")[2])
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        gap = (_logits(model, ids, cache) - expected).abs().max() / expected.abs().max()
    except Exception as error:
        return Support(family, "refused", reason=error_line(error))
    if not gap <= TOLERANCE:
        again = _logits(model, ids, DynamicCache(config=model.config))
        if not torch.allclose(again, expected):
            return Support(family, "not tried", reason="its own logits are not reproducible")
        return Support(family, "refused", reason=f"logits differ by {gap:.1e} of the largest")
    if not any(layer.get_seq_length() for layer in cache.quantized_layers):
        return Support(family, "not tried", reason="the model leaves the cache that it is given empty")
    return _served(family, cache)


def _ids() -> Tensor:
    return torch.randint(3, 100, (1, sum(CALLS)), generator=torch.Generator().manual_seed(0))


def tiny_model(family: str, **settings: Any) -> Any:
    """A two-layer random model of the family, with these settings of its config beside the small ones. Raises
    what transformers raises where they do not fit it."""
    config_class = CONFIG_MAPPING[family]
    defaults = config_class()
    small = {k: v for k, v in (_SMALL | _OWN.get(family, {}) | settings).items() if _settable(defaults, k)}
    if "kv_lora_rank" in small:  # latent attention: every head its own keys, rotary part as wide as head_dim
        small |= {"num_key_value_heads": 4, "head_dim": small["qk_rope_head_dim"]}
    kinds = list(dict.fromkeys(getattr(defaults, "layer_types", None) or ()))
    if kinds:
        small.setdefault("layer_types", (kinds * 2)[:2])
    try:
        config = config_class(**small)
    except Exception:
        config = config_class(**{k: v for k, v in small.items() if k != "layer_types"})
    torch.manual_seed(0)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"not tiny: {size:,} parameters")
    return AutoModelForCausalLM.from_config(config).eval()


def _settable(config: Any, name: str) -> bool:
    """Whether the config has the setting, as more than something it derives from others."""
    derived = getattr(type(config), name, None)
    if isinstance(derived, property) and derived.fset is None:
        return False
    try:
        return hasattr(config, name)
    except Exception:  # differs between layers
        return True


def markdown(rows: Iterable[Support]) -> str:
    """The support table, and below it the modes that are missing and why."""
    rows = list(rows)
    lines = ["| family | cache | layers | modes | why |", "| :--- | :--- | ---: | ---: | :--- |"]
    for row in rows:
        layers = f"{row.quantized} of {row.layers}" if row.layers else "—"
        lines.append(f"| {row.family} | {row.status} | {layers} | {row.modes or '—'} | {row.reason} |")
    return "\n".join([*lines, *_missing(rows)]) + "\n"


def _missing(rows: Sequence[Support]) -> list[str]:
    """Families by what they lack: what the cache does wrong, what transformers cannot do, what cannot be
    measured in one pass."""
    kinds: dict[str, Callable[[Support], list[str]]] = {
        "Not equal:": lambda row: _by_reason(row.modes.unequal if row.modes else {}),
        "Not by transformers itself:": lambda row: _by_reason(row.modes.impossible if row.modes else {}),
        NO_PASS: lambda row: [row.no_pass] if row.no_pass else [],
    }
    lines: list[str] = []
    for title, lacks in kinds.items():
        found: dict[str, list[str]] = {}
        for row in rows:
            for what in lacks(row):
                found.setdefault(what, []).append(row.family)
        if found:
            lines += ["", title, "", *(f"- {what}: {', '.join(names)}" for what, names in found.items())]
    return lines


def _by_reason(modes: dict[str, str]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for mode, reason in modes.items():
        reasons.setdefault(reason.partition(", such as")[0], []).append(mode)
    return [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]


def _logits(model: Any, ids: Tensor, cache: Any) -> Tensor:
    with torch.no_grad():
        calls = ids.split(CALLS, 1)
        return torch.cat(
            [
                model(input_ids=part, use_cache=True, **{cache_argument(model): cache}).logits
                for part in calls
            ],
            1,
        )


def _served(family: str, cache: QuantizedCache) -> Support:
    table = cache.describe()
    exact = table[~table["format"].str.startswith(SPEC.partition("+")[0] + "+")]
    reasons = sorted(set(exact["why"]))
    decoded = int(table["materialized"].fillna(0).sum()) > 0
    status = "decoding" if decoded else "fused"
    if decoded:
        reasons.append("the model computes attention itself")
    if len(exact):
        status += ", partly"
    return Support(family, status, cache.num_quantized_layers, len(cache.layers), "; ".join(reasons))


if __name__ == "__main__":
    from quantkv.quiet import quiet

    with quiet():
        print(INTRODUCTION + markdown(survey()), end="")
