"""Long generation through packed caches, beside the exact cache on the same prompts.

Two questions are kept apart. Left alone, when does a format's text part from the exact one? And had it not
parted, how far off is it at each step: the KL along the exact cache's own text, which a text that has gone
another way cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.arms.arm import Format, OnArm, Progress, Result, ignore
from quantkv.cache.quantized import QuantizedCache
from quantkv.decode_exact.one_pass import one_pass
from quantkv.decode_exact.simulate import simulate
from quantkv.errors import QuantKVError
from quantkv.instruments.divergence import TokenScores, check_reference, compare
from quantkv.instruments.huggingface import attention, check_length, fork, forward
from quantkv.measurements.checks import check_effect, check_exercised, spec_of
from quantkv.measurements.generation.choosing import Choice, Chooser
from quantkv.measurements.generation.section import generation_section
from quantkv.measurements.running import REFERENCE, Running, effective, prefilled, reference
from quantkv.spec.specs import CacheSpec


def generation_block(
    model: Any,
    prompts: Sequence[Tensor],
    arms: Mapping[str, Format],
    *,
    tokens: int,
    choice: Choice,
    on_arm: OnArm = ignore,
    progress: Progress = ignore,
) -> dict[str, Result]:
    """Generate `tokens` tokens after each prompt, all of one length, with every arm; `on_arm` gets each
    result at once. The first token comes from the exact prefill and is the same for all."""
    if tokens < 2:
        raise QuantKVError(f"tokens must be at least 2, got {tokens}: the first reads no packed key")
    check_length(model, len(prompts[0]) + tokens)
    block = _Block(model, torch.stack(list(prompts)), tokens, choice, progress)
    results = {}
    for label, given in arms.items():
        results[label] = block.result(label, given)
        on_arm(label, results[label])
    return results


class _Block:
    """What all arms share: the prefilled prompts, the exact cache's texts, its logits along them."""

    def __init__(self, model: Any, prompts: Tensor, tokens: int, choice: Choice, progress: Progress) -> None:
        self.model, self.prompts, self.tokens = model, prompts, tokens
        self.choice, self.chooser = choice, Chooser(choice, model)
        self.progress = progress
        self.progress("prefill", 0, len(prompts))
        self.cache, self.first = prefilled(model, prompts)
        self.error: QuantKVError | None = None
        try:
            self._run_reference()
        except QuantKVError as error:
            self.error = error

    def _run_reference(self) -> None:
        check_reference(self.first, "after the prompts")
        spec = spec_of(REFERENCE, reference(self.model))
        self.texts, _ = self._generate(REFERENCE, spec)
        self.logits = [self._along(i, spec)[0].cpu() for i in range(len(self.prompts))]
        check_reference(torch.stack(self.logits), "along its own texts")

    def result(self, label: str, given: Format) -> Result:
        """A result also where the arm fails."""
        arm = Running(label, given, error=self.error)
        section, ran, texts = arm.attempt(self._measure) or (None, None, None)
        tokens = {} if texts is None else {"tokens": {"text": texts.numpy(), "text_ref": self.texts.numpy()}}
        return arm.result("generation", section, ran, **tokens)

    def _measure(self, arm: Running) -> tuple[Result, Result, Tensor]:
        label, spec = arm.label, spec_of(arm.label, arm.given)
        along, reads = zip(*(self._along(i, spec) for i in range(len(self.prompts))))
        packed_read = sum(reads) / len(reads)
        check_exercised(label, packed_read, self.prompts.shape[1])
        same = all(torch.equal(logits.cpu(), ref) for logits, ref in zip(along, self.logits))
        check_effect(label, spec, same)
        scores = [self._compared(i, logits) for i, logits in enumerate(along)]
        texts, cache = self._generate(label, spec)
        section = generation_section(
            texts, self.texts, scores, packed_read=packed_read, seed=self.choice.seed
        )
        return section, effective(self.model, spec, cache, attn="quantkv"), texts

    def _compared(self, prompt: int, logits: Tensor) -> TokenScores:
        return compare(self.logits[prompt].to(logits.device), logits, self.texts[prompt, 1:])

    def _generate(self, label: str, spec: CacheSpec) -> tuple[Tensor, QuantizedCache]:
        """Texts `[P, N]` through a packed cache, and the cache."""
        cache = QuantizedCache.from_cache(self.cache, self.model.config, spec)
        texts = [self.chooser(self.first, 0)]
        with torch.inference_mode(), attention(self.model, "quantkv"):
            for step in range(1, self.tokens):
                self.progress(label, step, self.tokens)
                logits = forward(self.model, texts[-1][:, None], cache)[:, -1]
                texts.append(self.chooser(logits, step))
        return torch.stack(texts, 1).cpu(), cache

    def _along(self, prompt: int, spec: CacheSpec) -> tuple[Tensor, float]:
        """Logits `[N - 1, V]` along the exact text of a prompt, in one pass that equals decoding it token by
        token, and the share of reads that are packed."""
        ids, context, cache = self.texts[prompt, None, :-1], self.prompts.shape[1], None
        keep = ids.shape[1]
        if one_pass(self.model).continues:
            cache = _row(self.cache, prompt)
        else:
            ids = torch.cat([self.prompts[prompt, None], ids], 1)
        with torch.inference_mode(), simulate(self.model, spec, prefill=context) as simulation:
            logits = forward(self.model, ids, cache, keep=keep)[0]
        return logits, simulation.packed_read_fraction


def _row(cache: DynamicCache, row: int) -> DynamicCache:
    """One row of a plain cache; growing it changes only itself."""
    twin = fork(cache)
    twin.reorder_cache(torch.tensor([row]))
    return twin
