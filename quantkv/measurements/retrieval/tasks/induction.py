"""Induction: a list of word pairs, one word repeated, its partner to follow (Olsson et al. 2022,
arXiv:2209.11895)."""

import random

import torch

from quantkv.measurements.retrieval.tasks.base import Haystack, Sample
from quantkv.measurements.retrieval.tasks.words import WORDS

PAIRS = 12
"""A model of 135M parameters finds the partner among twelve about every second time, among 24 hardly ever."""


class Induction:
    name = "induction"

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, 2 * PAIRS)
        pairs = list(zip(words[:PAIRS], words[PAIRS:]))
        key, value = dice.choice(pairs)
        listed = haystack.encode("\n" + "".join(f"{left}: {right}\n" for left, right in pairs))
        context, place = haystack.build(listed, depth, dice)
        return Sample(
            context=context,
            question=torch.tensor(haystack.encode(f"\n{key}:")),
            answer=torch.tensor(haystack.encode(f" {value}")),
            place=place,
            chance=1 / PAIRS,
        )
