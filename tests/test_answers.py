"""Whatever a model or an application asks a cache, the lossless packed cache answers as a `DynamicCache`.

After no call, one and three, for every public property, attribute and method of the cache and its layers:
`ASKED` says with which arguments, `CHANGING` are the methods that change a cache (random sequences of them
are compared elsewhere) and `DIFFERENT` is what must differ, and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import IMPLEMENTATIONS, plain_cache, token_ids, with_attention
from side_by_side import agree, config_of, outcome
from support.architectures import tiny_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PaliGemmaForConditionalGeneration

from quantkv import QuantizedCache, cache_argument

CALLS = (20, 1, 8)
SAMPLE = (
    "llama", "gpt2", "gemma3_text", "llama4_text", "qwen3_next", "lfm2_moe", "deepseek_v3", "hrm_text",
)  # fmt: skip
ASKED: dict[str, list[tuple[Any, ...]]] = {
    "get_seq_length": [(), (0,), (1,), (99,)],
    "get_max_length": [(), (0,), (1,), (99,)],
    "get_max_cache_shape": [()],
    "get_query_offset": [(), (0,), (1,), (99,)],
    "get_mask_sizes": [(1, 0), (5, 0), (5, 1), (1, 99)],
    "get_conv_state": [(0,), (1,)],
    "get_recurrent_state": [(0,), (1,)],
    "has_previous_state": [(), (0,), (1,), (99,)],
    "is_recording_past": [(0,), (1,)],
}
LAYER_ASKED: dict[str, list[tuple[Any, ...]]] = {
    "get_seq_length": [()],
    "get_max_length": [()],
    "get_max_cache_shape": [()],
    "get_mask_sizes": [(1,), (5,)],
}
CHANGING = {
    "activate_past_recording", "batch_repeat_interleave", "batch_select_indices", "crop",
    "early_initialization", "lazy_initialization", "reorder_cache", "reset", "update", "update_conv_state",
    "update_indexer", "update_recurrent_state",
}  # fmt: skip
DIFFERENT = {
    "layers": "compared one by one",
    "offload": "a packed layer stays on its device, and says so",
    "prefetch": "as it never left",
}
EMPTY = (0,)
"""How an empty layer's tensors look: transformers' have one dimension before the first token, ours four."""

pytestmark = pytest.mark.usefixtures("no_gradients")


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_") and name not in DIFFERENT]


def answers(of: Any, names: list[str], asked: dict[str, list[tuple[Any, ...]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        if name in CHANGING:
            assert hasattr(of, name), name
        elif name in asked:
            found[name] = [shown(outcome(methodcaller(name, *a), of)) for a in asked[name]]
        else:
            found[name] = shown(outcome(attrgetter(name), of))
    return found


def shown(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (x.shape if x.numel() else EMPTY, x.dtype, float(x.double().sum()))
    if isinstance(x, (list, tuple)):
        return [shown(item) for item in x]
    return {k: shown(v) for k, v in x.items()} if isinstance(x, dict) else x


def compare(plain: Any, packed: Any) -> None:
    agree(answers(plain, public(plain), ASKED), answers(packed, public(plain), ASKED), "cache")
    assert len(plain) == len(packed)
    for index, (a, b) in enumerate(zip(plain.layers, packed.layers, strict=True)):
        agree(answers(a, public(a), LAYER_ASKED), answers(b, public(a), LAYER_ASKED), f"layer {index}")
    agree(shown(outcome(list, plain)), shown(outcome(list, packed)), "iteration")


def compare_in_calls(model: Any, spec: str) -> None:
    model.requires_grad_(False)
    ids, caches = token_ids(2, sum(CALLS), 100) + 3, [plain_cache(model), QuantizedCache(model.config, spec)]
    compare(*caches)
    for number, part in enumerate(ids.split(CALLS, 1)):
        for cache in caches:
            model(input_ids=part, use_cache=True, **{cache_argument(model): cache})
        if number != 1:
            compare(*caches)


@pytest.mark.parametrize("spec", ["exact+r3+f4+s2+k2", "exact+r3+f4+s2+k2+sliding"])
@pytest.mark.parametrize("family", SAMPLE)
def test_answers(family: str, spec: str) -> None:
    compare_in_calls(tiny_model(family), spec)


def served() -> list[str]:
    page = (Path(__file__).parent.parent / "docs" / "support.md").read_text()
    return re.findall(r"^\| (\S+) \| (?:fused|decoding)", page, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("family", served())
def test_answers_of_every_family_that_is_served(family: str) -> None:
    compare_in_calls(tiny_model(family), "exact+r3+f4+s2+k2+sliding")


@pytest.mark.parametrize("spec", ["exact", "exact+sliding"])
def test_answers_where_layers_share_keys(spec: str) -> None:
    config = config_of("gemma4_text")
    for name, size in (("vocab_size", 128), ("hidden_size_per_layer_input", 8), ("intermediate_size", 32)):
        setattr(config, name, size)
    config.vocab_size_per_layer_input = 128
    compare_in_calls(AutoModelForCausalLM.from_config(config).eval(), spec)


# --- models that build their masks from `is_initialized` ---
def hrm_text() -> Any:
    model = tiny_model("hrm_text")
    model.config.prefix_lm = True
    return model


def paligemma() -> Any:
    text = {
        "model_type": "gemma", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "paligemma", text_config=text, vision_config=vision, projection_dim=64, image_token_index=1
    )
    model = PaliGemmaForConditionalGeneration(config).eval()
    for weight in model.model.language_model.parameters():
        torch.nn.init.normal_(weight, std=0.15)
    return model


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("build", "prefix"), [(hrm_text, 1), (paligemma, 0)])
def test_a_prefix_is_seen_from_both_sides_in_the_first_call_only(
    build: Callable[[], Any], prefix: int, implementation: str
) -> None:
    model, ids, logits = build(), token_ids(1, sum(CALLS), 100) + 3, []
    kinds = torch.where(torch.arange(sum(CALLS)) % 20 < 10, prefix, 1 - prefix)[None]
    for packed in (False, True):
        with_attention(model, implementation if packed else "eager")
        cache = QuantizedCache(model.config, "exact+r3+f4+s2+k2") if packed else plain_cache(model)
        stops, options = accumulate(CALLS), {"use_cache": True, cache_argument(model): cache}
        logits.append(
            [
                model(input_ids=part, token_type_ids=kinds[:, :stop], **options).logits
                for part, stop in zip(ids.split(CALLS, 1), stops, strict=True)
            ]
        )
    for expected, found in zip(*logits, strict=True):
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
