"""How far one set of next-token distributions is from another: NLL, KL, top-1 and top-5 agreement per token.

The log-softmax is taken in float32 (float64 when the logits are float64), sums in float64. KL is summed as
p log(p/q) - p + q: every term is >= 0 and the extra terms cancel for true distributions, so the rounding of
the two normalisers, which would swamp the KL of a good 8-bit format, enters only in second order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quantkv.errors import QuantKVError

CHUNK_ELEMENTS = 1 << 18
"""Elements compared at a time: float64 copies of so few stay in the processor's caches."""
TOP = 5


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One value per scored token: nats, nats, nats, bool, and a share of 0 to 1."""

    nll: Tensor
    nll_ref: Tensor
    kl: Tensor
    top1: Tensor
    top5: Tensor

    def __len__(self) -> int:
        return len(self.nll)


def finite(logits: Tensor) -> Tensor:
    """Which rows of `[..., V]` are distributions: some entry is finite, none is NaN or +inf; −inf is a token
    that cannot come."""
    return logits.amax(-1).isfinite()


def check_reference(logits: Tensor, where: str) -> None:
    """Raise QuantKVError where logits `[..., V]` of the exact cache are no distributions: nothing can be said
    of a format by them."""
    bad = ~finite(logits)
    if bool(bad.any()):
        raise QuantKVError(
            f"the exact cache itself gives logits that are not finite, for {int(bad.sum())} of {bad.numel()} "
            f"tokens {where}: nothing can be said of a format; try the model in another dtype"
        )


def compare(logits_ref: Tensor, logits: Tensor, targets: Tensor) -> TokenScores:
    """Score `logits` [N, V] against `logits_ref` [N, V], both predicting `targets` [N]. What is not finite
    agrees with nothing."""
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
    kl, both = kl_divergence(log_p, log_q), finite(log_p) & finite(log_q)
    top1 = (top_overlap(log_p, log_q, 1) == 1) & both
    return nll, nll_ref, kl, top1, top_overlap(log_p, log_q, TOP) * both


def log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension, from log-probabilities."""
    log_p, log_q = log_p.double(), log_q.double()
    p, q = log_p.exp(), log_q.exp()
    cross = torch.where(p > 0, p * (log_p - log_q), 0.0)
    return (cross - p + q).sum(-1)


def top_overlap(scores_ref: Tensor, scores: Tensor, k: int) -> Tensor:
    """Share of the reference's k most likely tokens that are among the other's k, float64 [N] from [N, V].

    Where tokens tie for the last places, each side may pick among them, and the pick that agrees most counts:
    for k = 1, a most likely token of one is a most likely token of the other. A vocabulary of fewer than k
    tokens has that many.
    """
    k = min(k, scores.shape[-1])
    (best_ref, tied_ref), (best, tied) = _best(scores_ref, k), _best(scores, k)
    shared = (best_ref[:, :, None] == best[:, None, :]).any(-1).sum(-1)
    rows = tied_ref | tied
    shared[rows] = _shared_with_ties(scores_ref[rows], scores[rows], k)
    return shared.double() / k


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely tokens [N, k], and whether others tie with the last of them [N]."""
    values, tokens = scores.topk(min(k + 1, scores.shape[-1]), -1)
    tied = values[:, k - 1 : k].eq(values[:, k:]).any(-1)
    return tokens[:, :k], tied


def _shared_with_ties(scores_ref: Tensor, scores: Tensor, k: int) -> Tensor:
    """The largest number of tokens that two picks of k can share."""
    above_ref, last_ref, free_ref = _places(scores_ref, k)
    above, last, free = _places(scores, k)
    one = torch.minimum((above_ref & last).sum(-1), free)
    other = torch.minimum((last_ref & above).sum(-1), free_ref)
    both = torch.minimum((last_ref & last).sum(-1), torch.minimum(free - one, free_ref - other))
    return (above_ref & above).sum(-1) + one + other + both


def _places(scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens surely among the k best, tokens tied for the last places, and how many places those share."""
    threshold = scores.topk(k, -1).values[:, -1:]
    above = scores > threshold
    return above, scores == threshold, k - above.sum(-1)
