"""Everything that `generate` can do with a cache, as functions of a model and an empty cache; they return
tokens.

A cache must serve more than appending: beams reorder its rows, candidates repeat and select them, assisted
decoding takes tokens back, a chat continues it. A lossless cache gives a `DynamicCache`'s tokens in each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache as once
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.cache.names import IMPLEMENTATION, cache_argument
from quantkv.cache.quantized import QuantizedCache

PROMPT, NEW = 45, 18
"""Tokens before and after: with the small windows of tests some are packed before decoding and some in it."""
Mode = Callable[[Any, Any], Tensor]


def generate(model: Any, cache: Any, ids: Tensor | None = None, **more: Any) -> Tensor:
    """`NEW` greedy tokens after two random rows, or what `more` says."""
    ids = prompt(model, 2, PROMPT) if ids is None else ids
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, cache_argument(model): cache}
    return model.generate(ids, **settings | {"attention_mask": torch.ones_like(ids)} | more)


def prompt(model: Any, rows: int, length: int, seed: int = 1) -> Tensor:
    """Random tokens of the model's vocabulary, above the special ones."""
    return torch.randint(3, _vocabulary(model), (rows, length), generator=torch.Generator().manual_seed(seed))


def sampled(model: Any, cache: Any) -> Tensor:
    torch.manual_seed(3)
    return generate(model, cache, do_sample=True, num_return_sequences=2, temperature=0.8)


def beams(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, num_beams=3, num_return_sequences=2)


def sampled_beams(model: Any, cache: Any) -> Tensor:
    torch.manual_seed(5)
    return generate(model, cache, num_beams=3, do_sample=True)


def padded(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, attention_mask=_left_padded(0, 13))


def padded_beams(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, attention_mask=_left_padded(7, 0), num_beams=2)


def chunked(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, prefill_chunk_size=7)


def prompt_lookup(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, prompt(model, 1, PROMPT // 3).repeat(1, 3), prompt_lookup_num_tokens=4)


def assisted(model: Any, cache: Any) -> Tensor:
    return generate(model, cache, prompt(model, 1, PROMPT), assistant_model=_assistant(_vocabulary(model)))


def candidates(model: Any, cache: Any) -> Tensor:
    """Contrastive search in small: each row goes on with its three likeliest tokens, one is kept."""
    ids, rows, tried = prompt(model, 2, PROMPT), torch.arange(2), 3
    argument, step, out = cache_argument(model), ids, []
    for turn in range(NEW // 2):
        likeliest = (
            model(input_ids=step, use_cache=True, **{argument: cache}).logits[:, -1].topk(tried).indices
        )
        cache.batch_repeat_interleave(tried)
        model(input_ids=likeliest.reshape(-1, 1), use_cache=True, **{argument: cache})
        kept = (rows + turn) % tried
        cache.batch_select_indices(rows * tried + kept)
        out += [likeliest[rows, kept, None], likeliest]
        step = prompt(model, 2, 1, seed=turn)
    return torch.cat(out, 1)


def chat(model: Any, cache: Any) -> Tensor:
    """Three turns on one cache: each continues what the last one left."""
    ids = prompt(model, 1, PROMPT // 2)
    for turn in range(3):
        ids = torch.cat([generate(model, cache, ids, max_new_tokens=12), prompt(model, 1, 9, seed=turn)], 1)
    return ids


def reset(model: Any, cache: Any) -> Tensor:
    generate(model, cache, prompt(model, 2, PROMPT + 15, seed=9))
    cache.reset()
    return generate(model, cache)


def copied(model: Any, cache: Any) -> Tensor:
    """A copy goes on, then the original, which must not have noticed."""
    ids = torch.cat(
        [generate(model, cache, prompt(model, 1, PROMPT), max_new_tokens=12), prompt(model, 1, 3)], 1
    )
    return torch.cat([generate(model, c, ids) for c in (copy.deepcopy(cache), cache)])


MODES: dict[str, Mode] = {
    "greedy": generate, "sampled": sampled, "beams": beams, "sampled beams": sampled_beams, "padded": padded,
    "padded beams": padded_beams, "chunked": chunked, "prompt lookup": prompt_lookup, "assisted": assisted,
    "candidates": candidates, "chat": chat, "reset": reset, "copied": copied,
}  # fmt: skip


@dataclass(slots=True)
class ModeResults:
    """How many modes gave equal tokens, why others did not, and what transformers cannot do itself."""

    equal: int = 0
    unequal: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.equal} of {self.equal + len(self.unequal)}"


def compare_modes(model: Any, spec: str) -> ModeResults:
    """Run all modes on a `DynamicCache`, and on a `QuantizedCache` through the fused attention.

    In float64: two attention kernels round a near tie differently, which would be no error of the cache.
    """
    model, seen = as_reference(model), ModeResults()
    with torch.no_grad():
        for name, mode in MODES.items():
            try:
                expected = _expected(model, mode)
            except Exception as error:
                seen.impossible[name] = error_line(error)
                continue
            reason = _difference(model, mode, spec, expected)
            if not reason:
                seen.equal += 1
            elif reason.startswith("other") and not torch.equal(_expected(model, mode), expected):
                seen.impossible[name] = "gives other tokens each time"
            else:
                seen.unequal[name] = reason
    return seen


def as_reference(model: Any) -> Any:
    """The model in float64 where it can be run so, never ending early; experts as plain products, which know
    that dtype."""
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    model.set_experts_implementation("eager")
    try:
        with torch.no_grad():
            model.double()(input_ids=prompt(model, 1, 3))
    except RuntimeError:  # a mask of float32 filled with the least float64, say
        model.float()
    return model


def _expected(model: Any, mode: Mode) -> Tensor:
    # not "eager": it casts the masked scores of float64 to float32, where they are −inf, and rows of padding
    # become NaN
    own = "sdpa" if model._supports_sdpa else IMPLEMENTATION
    model.set_attn_implementation(own)
    return mode(model, DynamicCache(config=model.config))


def _difference(model: Any, mode: Mode, spec: str, expected: Tensor) -> str:
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        tokens = mode(model, QuantizedCache(model.config, spec))
    except Exception as error:
        return error_line(error)
    return "" if torch.equal(tokens, expected) else "other tokens"


def error_line(error: Exception) -> str:
    """An error on one line that fits a table."""
    return f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")[:140]


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _left_padded(*pads: int) -> Tensor:
    return (torch.arange(PROMPT) >= torch.tensor(pads)[:, None]).long()


@once
def _assistant(vocabulary: int) -> Any:
    from quantkv.models.synthetic import random_model

    return random_model("random-llama", num_hidden_layers=1, vocab_size=vocabulary)
