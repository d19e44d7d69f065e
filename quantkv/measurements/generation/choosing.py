"""Choosing the next token: greedily, or by chance with the same chance for every format.

Sampling is done by the Gumbel-max trick: adding Gumbel noise to log-probabilities and taking the largest is
exactly a draw from them. The noise of a step depends on the seed and the step alone, so two caches whose
distributions agree choose the same token, and differ no more often than their distributions do.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from quantkv.errors import QuantKVError

MODES = ("greedy", "sample")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How tokens are chosen: `temperature` and `top_p` hold for the mode `sample` only."""

    mode: str = "greedy"
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise QuantKVError(f"unknown mode {self.mode!r}; legal: {', '.join(MODES)}")
        if not isinstance(self.temperature, Real) or not self.temperature > 0:
            raise QuantKVError(
                f"temperature must be above 0, got {self.temperature!r}; mode greedy takes none"
            )
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise QuantKVError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")


class Chooser:
    """Chooses tokens; the model's end tokens are never chosen, so that all texts get equally long."""

    def __init__(self, choice: Choice, model: Any) -> None:
        self.choice = choice
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        steps = [SuppressTokensLogitsProcessor(ends)] if ends else []
        if choice.mode == "sample":
            steps += [TemperatureLogitsWarper(choice.temperature), TopPLogitsWarper(choice.top_p)]
        self.processors = LogitsProcessorList(steps)

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """The next token of each row, `[B]`, from logits `[B, V]`."""
        scores = self.processors(torch.empty(len(logits), 0, dtype=torch.long), logits.float())
        if self.choice.mode == "sample":
            scores = scores + self._noise(scores.shape, step).to(scores.device)
        return scores.argmax(-1)

    def _noise(self, shape: torch.Size, step: int) -> Tensor:
        """Gumbel noise, made on the CPU so that a device does not change it."""
        generator = torch.Generator().manual_seed(self.choice.seed * 1_000_003 + step)
        return -torch.empty(shape).exponential_(generator=generator).log()
