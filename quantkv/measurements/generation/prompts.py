"""The prompts at one context: the same for every format."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quantkv.data import bos_id
from quantkv.instruments.windows import check_counts, make_windows

PROMPTS = 4


def make_prompts(
    ids: Tensor,
    tokenizer: Any,
    *,
    context: int,
    span: int,
    tokens: int,
    prompts: int = PROMPTS,
    seed: int = 0,
) -> list[Tensor]:
    """Prompts `[context]` from a text `[T]`, spread over it, that end at the same places for every context up
    to `span`; room for `tokens` tokens is left between them."""
    check_counts(tokens=tokens, prompts=prompts)
    places = make_windows(ids, span=span, score=tokens, windows=prompts, seed=seed, bos_id=bos_id(tokenizer))
    return [window[:context] for window in places.at(context)]
