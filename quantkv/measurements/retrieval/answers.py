"""Answering one question through a cache: the context packed, the question on top of it, then the answer.

After an exact prefill the first generated token never reads a packed key. So the context alone is prefilled,
once and exactly, and shared by all formats; each packs it; the question comes as a call of its own, which
reads the packed context, and the answer follows token by token. The true answer is fed back: greedy decoding
says it if and only if every one of its tokens is the most likely one after those before it, so one pass gives
the exact match and the log-probability both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantkv.cache.quantized import QuantizedCache
from quantkv.instruments.divergence import log_softmax
from quantkv.instruments.huggingface import attention, forward
from quantkv.measurements.retrieval.tasks import Sample


@dataclass(frozen=True, slots=True)
class Answered:
    """`right`: greedy decoding gives the answer. `log_prob`: nats, of the whole answer. `said`: the most
    likely token at each of its places."""

    right: bool
    log_prob: float
    said: Tensor


def answer(model: Any, cache: QuantizedCache, sample: Sample) -> Answered:
    """The answer to a sample whose context `cache` holds; the cache grows by question and answer."""
    with torch.inference_mode(), attention(model, "quantkv"):
        logits = [forward(model, sample.question[None], cache)]
        logits += [forward(model, token[None, None], cache) for token in sample.answer[:-1]]
    scores = log_softmax(torch.cat(logits, 1)[0]).cpu()
    said = scores.argmax(-1)
    log_prob = scores.double().gather(-1, sample.answer[:, None]).sum()
    right = torch.equal(said, sample.answer) and not bool(log_prob.isnan())
    return Answered(right, float(log_prob), said)


def calls_after(sample: Sample) -> list[int]:
    """Sizes of the calls after the context: the question at once, then the answer but its last token."""
    return [len(sample.question)] + [1] * (len(sample.answer) - 1)
