"""What decides attention beside queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """`mask` `[B|1, 1|Hq, Q|1, T]` is bool (True = attend) or additive; `causal` lets query i of Q see keys
    up to `T − Q + i`. Scores are multiplied by `scaling` (None: one over the root of the width) and kept
    below `softcap` by tanh; `sink_logits` `[Hq]` join the softmax without a value."""

    mask: Tensor | None = None
    causal: bool = False
    scaling: float | None = None
    softcap: float | None = None
    sink_logits: Tensor | None = None

    def scale(self, width: int) -> float:
        """What scores of queries and keys of so many channels are multiplied by."""
        return width**-0.5 if self.scaling is None else self.scaling


PLAIN = AttentionOptions()
"""Every query sees every key."""
