"""From generated texts to the generation section of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from quantkv.instruments.divergence import TokenScores
from quantkv.instruments.statistics import window_interval
from quantkv.measurements.checks import few_packed
from quantkv.measurements.generation.texts import equal_share, first_divergence, repeated_share

STRETCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The generation section of a row, over all prompts.

    `first_divergence_median` and `_min` count generated tokens before the first that differs from the exact
    cache's; a text that never differs counts with its whole length. `kl_*` are nats per token along the exact
    cache's own text; `kl_along` gives the mean of each eighth of it. `repeated` is the share of runs of four
    tokens that occurred before.
    """

    prompts: int
    tokens: int
    diverged: int
    first_divergence_median: float
    first_divergence_min: int
    equal_tokens: float
    kl_mean: float
    kl_low: float | None
    kl_high: float | None
    kl_max: float
    kl_along: list[float]
    top1_agreement: float
    repeated: float
    repeated_ref: float
    packed_read_fraction: float
    texts: list[dict]
    flags: list[str]

    def to_dict(self) -> dict:
        return asdict(self)


def summarise(
    texts: Tensor, reference: Tensor, scores: Sequence[TokenScores], *, packed_read: float, seed: int = 0
) -> Generation:
    """Texts of a format and of the exact cache, `[P, N]`, and the scores along each text of the latter."""
    told = [_told(*one) for one in zip(texts, reference, scores, strict=True)]
    kl = [text["sum_kl"] for text in told]
    kl_low, kl_high = window_interval(kl, [len(s) for s in scores], seed=seed)
    until = [text["n"] if text["first_divergence"] is None else text["first_divergence"] for text in told]
    each = torch.cat([s.kl for s in scores])
    return Generation(
        prompts=len(texts),
        tokens=texts.shape[1],
        diverged=sum(text["first_divergence"] is not None for text in told),
        first_divergence_median=float(np.median(until)),
        first_divergence_min=min(until),
        equal_tokens=_mean(told, "equal"),
        kl_mean=float(each.mean()),
        kl_low=kl_low,
        kl_high=kl_high,
        kl_max=float(each.max()),
        kl_along=_along(scores),
        top1_agreement=float(torch.cat([s.top1 for s in scores]).double().mean()),
        repeated=_mean(told, "repeated"),
        repeated_ref=_mean(told, "repeated_ref"),
        packed_read_fraction=packed_read,
        texts=told,
        flags=few_packed(packed_read),
    )


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
