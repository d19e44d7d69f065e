"""From generated texts to the generation section of a row: where they part from those of the exact cache, how
many tokens they share, how much they repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantkv.instruments.divergence import TokenScores
from quantkv.instruments.statistics import window_interval
from quantkv.measurements.checks import few_packed

STRETCHES = 8
REPEATED = 4
"""Tokens of a run that counts as repeated when it occurs again."""


def generation_section(
    texts: Tensor, reference: Tensor, scores: Sequence[TokenScores], *, packed_read: float, seed: int = 0
) -> dict[str, Any]:
    """From texts of a format and of the exact cache, `[P, N]`, and the scores along each text of the latter.

    `first_divergence_median` and `_min` count generated tokens before the first that differs from the exact
    cache's; a text that never differs counts with its whole length. `kl_*` are nats per token along the exact
    cache's own text; `kl_along` gives the mean of each eighth of it. `repeated` is the share of runs of four
    tokens that occurred before.
    """
    told = [_told(*one) for one in zip(texts, reference, scores, strict=True)]
    kl = [text["sum_kl"] for text in told]
    kl_low, kl_high = window_interval(kl, [len(s) for s in scores], seed=seed)
    until = [text["n"] if text["first_divergence"] is None else text["first_divergence"] for text in told]
    each = torch.cat([s.kl for s in scores])
    return {
        "prompts": len(texts),
        "tokens": texts.shape[1],
        "diverged": sum(text["first_divergence"] is not None for text in told),
        "first_divergence_median": float(np.median(until)),
        "first_divergence_min": min(until),
        "equal_tokens": _mean(told, "equal"),
        "kl_mean": float(each.mean()),
        "kl_low": kl_low,
        "kl_high": kl_high,
        "kl_max": float(each.max()),
        "kl_along": _along(scores),
        "top1_agreement": float(torch.cat([s.top1 for s in scores]).double().mean()),
        "repeated": _mean(told, "repeated"),
        "repeated_ref": _mean(told, "repeated_ref"),
        "packed_read_fraction": packed_read,
        "texts": told,
        "flags": few_packed(packed_read),
    }


def _told(text: Tensor, reference: Tensor, scores: TokenScores) -> dict:
    """One prompt, so that two runs can be paired later."""
    shared = {"first_divergence": first_divergence(text, reference), "equal": equal_share(text, reference)}
    repeated = {"repeated": repeated_share(text), "repeated_ref": repeated_share(reference)}
    return {"n": len(text), **shared, **repeated, "sum_kl": float(scores.kl.sum())}


def _mean(told: Sequence[dict], name: str) -> float:
    return float(np.mean([text[name] for text in told]))


def _along(scores: Sequence[TokenScores]) -> list[float]:
    """Mean KL of each eighth of the texts, in their order; one value per token where they are shorter."""
    kl = torch.stack([s.kl for s in scores]).mean(0)
    return [float(part.mean()) for part in kl.tensor_split(min(STRETCHES, len(kl)))]


def first_divergence(text: Tensor, reference: Tensor) -> int | None:
    """The first position where two texts `[N]` differ; None where they are equal."""
    unequal = (text != reference).nonzero()
    return int(unequal[0]) if len(unequal) else None


def equal_share(text: Tensor, reference: Tensor) -> float:
    """The share of positions with the same token."""
    return float((text == reference).double().mean())


def repeated_share(text: Tensor, size: int = REPEATED) -> float:
    """The share of runs of `size` tokens that occurred before in the text `[N]`: 0 where all are new."""
    runs = [tuple(run.tolist()) for run in text.unfold(0, size, 1)] if len(text) >= size else []
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
