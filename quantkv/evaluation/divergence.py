"""How far one set of next-token distributions is from another: NLL, KL and top-1 agreement per token.

The log-softmax is taken in float32 (float64 when the logits are float64), sums in float64. KL is summed as
p log(p/q) - p + q: every term is >= 0 and the extra terms cancel for true distributions, so the rounding of
the two normalisers, which would swamp the KL of a good 8-bit format, enters only in second order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = 4 << 20


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One value per scored token."""

    nll: Tensor
    nll_ref: Tensor
    kl: Tensor
    top1: Tensor

    def __len__(self) -> int:
        return len(self.nll)


def compare(logits_ref: Tensor, logits: Tensor, targets: Tensor) -> TokenScores:
    """Score `logits` [N, V] against `logits_ref` [N, V], both predicting `targets` [N]."""
    if logits_ref.shape != logits.shape or len(targets) != len(logits):
        raise ValueError(f"shapes differ: {logits_ref.shape}, {logits.shape}, {len(targets)} targets")
    rows = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    pieces = [
        _compare_chunk(logits_ref[i : i + rows], logits[i : i + rows], targets[i : i + rows])
        for i in range(0, len(targets), rows)
    ]
    return TokenScores(*(torch.cat(column).cpu() for column in zip(*pieces, strict=True)))


def _compare_chunk(logits_ref: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    targets = targets.to(logits.device)[:, None]
    log_p, log_q = log_softmax(logits_ref.to(logits.device)), log_softmax(logits)
    nll = -log_q.gather(-1, targets)[:, 0].double()
    nll_ref = -log_p.gather(-1, targets)[:, 0].double()
    return nll, nll_ref, kl_divergence(log_p, log_q), top1_agreement(log_p, log_q)


def log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension, from log-probabilities."""
    log_p, log_q = log_p.double(), log_q.double()
    p, q = log_p.exp(), log_q.exp()
    cross = torch.where(p > 0, p * (log_p - log_q), 0.0)
    return (cross - p + q).sum(-1)


def top1_agreement(scores_ref: Tensor, scores: Tensor) -> Tensor:
    """True where a most likely token of one is a most likely token of the other; ties count as agreement."""
    best_ref = scores_ref == scores_ref.amax(-1, keepdim=True)
    best = scores == scores.amax(-1, keepdim=True)
    return (best_ref & best).any(-1)
