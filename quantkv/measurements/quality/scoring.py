"""Scoring one window with one format: the prompt prefilled once, the queries run through `simulate`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from quantkv.decode_exact.one_pass import one_pass
from quantkv.decode_exact.simulate import PLAIN_WINDOW, protocol_calls, simulate
from quantkv.decode_exact.simulation import Simulation
from quantkv.instruments.divergence import TokenScores, compare
from quantkv.instruments.huggingface import (
    attention,
    dynamic_bytes,
    fork,
    forward,
    stock_attention,
)
from quantkv.measurements.quality.protocols import Protocol
from quantkv.measurements.running import prefilled, reference

PRECISE = (torch.float32, torch.float64)


@dataclass(slots=True)
class PreparedWindow:
    """What the arms of a window share. `cache` holds the exact prompt; None where prefill is not exact, or
    where the model cannot read on from it in one call: then the whole window runs each time."""

    ids: Tensor
    start: int | None
    cache: DynamicCache | None
    logits_ref: Tensor

    @property
    def nbytes(self) -> int:
        held = dynamic_bytes(self.cache) if self.cache is not None else 0
        return held + self.logits_ref.nbytes


@dataclass(frozen=True, slots=True)
class Scored:
    """One window scored with one format. `saturated`: stored numbers at the end of their dtype's range."""

    tokens: TokenScores
    packed_read: float | None
    identical: bool
    saturated: int = 0


class Scorer:
    """Scores windows of first + score + 1 ids: the queries from `first` on, each with the id after it.

    `first` is the context, or 0 where a protocol scores windows whole.
    """

    def __init__(self, model: Any, protocol: Protocol, context: int) -> None:
        self.model, self.protocol = model, protocol
        self.first = protocol.first_scored(context)
        self.calls = protocol_calls(protocol.prefill, protocol.prompt(context))

    def prepare(self, ids: Tensor, start: int | None = None) -> PreparedWindow:
        """Prefill the prompt, and score the window with the reference."""
        kept = self.protocol.prefill == "exact" and one_pass(self.model).continues
        cache = prefilled(self.model, ids[None, : self.first])[0] if kept else None
        window = PreparedWindow(ids, start, cache, torch.empty(0))
        window.logits_ref = self._simulated(window, reference(self.model))[0].cpu()
        if cache is not None:
            window.cache = fork(cache, "cpu")
        return window

    def score(self, window: PreparedWindow, spec: Any) -> Scored:
        logits, simulation = self._simulated(window, spec)
        logits_ref = window.logits_ref.to(logits.device)
        tokens = compare(logits_ref, logits, window.ids[self.first + 1 :])
        identical, saturated = torch.equal(logits, logits_ref), simulation.saturation.numbers
        return Scored(tokens, simulation.packed_read_fraction, identical, saturated)

    def floor_kl(self, window: PreparedWindow) -> float:
        """Mean KL of the reference to stock attention: smaller differences are those of the arithmetic."""
        with torch.inference_mode(), attention(self.model, stock_attention(self.model)):
            logits = self._forward(window)
        logits_ref = window.logits_ref.to(logits.device)
        return float(compare(logits, logits_ref, window.ids[self.first + 1 :]).kl.mean())

    def scale_kl(self, window: PreparedWindow, twin: Any) -> Tensor:
        """KL of the model's bfloat16 twin, in stock attention, to the reference, for each scored token."""
        ids, targets = window.ids[None, :-1], window.ids[self.first + 1 :]
        with torch.inference_mode(), attention(twin, stock_attention(twin)):
            logits = forward(twin, ids, keep=len(targets))[0]
        return compare(window.logits_ref.to(logits.device), logits, targets).kl

    def _simulated(self, window: PreparedWindow, spec: Any) -> tuple[Tensor, Simulation]:
        options = self.calls | {"count_from": self.first}
        if callable(spec):
            options |= {"window": self.protocol.overrule_window(PLAIN_WINDOW)}
        with torch.inference_mode(), simulate(self.model, spec, **options) as simulation:
            logits = self._forward(window)
        return logits, simulation

    def _forward(self, window: PreparedWindow) -> Tensor:
        """Logits of the queries: on the prefilled prompt where there is one, else of the whole window."""
        score = len(window.ids) - self.first - 1
        if window.cache is None:
            return forward(self.model, window.ids[None, :-1], keep=score)[0]
        return forward(self.model, window.ids[None, self.first : -1], fork(window.cache), keep=score)[0]


def no_bf16_twin(model: Any) -> str | None:
    """Why a model has no bfloat16 twin to be compared with; None where it has one."""
    if model.dtype not in PRECISE:
        return f"the model runs in {str(model.dtype).removeprefix('torch.')} itself"
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return "the model is spread over devices, so it cannot be copied"
    return None


def bf16_twin(model: Any) -> Any:
    """A copy of the model as loading it in bfloat16 would make it, without a second copy of its float32.

    Parameters and saved buffers are cast; tables that a model computes itself, such as the frequencies of
    rotary positions, stay in float32 and are shared.
    """
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    replaced: dict[int, Any] = {}
    for parameter in model.parameters():
        replaced[id(parameter)] = nn.Parameter(_cast(parameter), requires_grad=False)
    for buffer in model.buffers():
        replaced[id(buffer)] = _cast(buffer) if id(buffer) in saved else buffer
    return copy.deepcopy(model, replaced)


def _cast(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
