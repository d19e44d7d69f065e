"""Needles: secret numbers in running text, one of them asked for (as in RULER, arXiv:2404.06654)."""

import random
from dataclasses import dataclass

import torch

from quantkv.measurements.retrieval.tasks.base import Haystack, Sample
from quantkv.measurements.retrieval.tasks.words import WORDS


@dataclass(frozen=True)
class Needle:
    """`keys` needles of one form; all but one are distractors, so a guesser is right once in `keys`."""

    name: str
    keys: int = 1

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, self.keys)
        numbers = dice.sample(range(10_000, 100_000), self.keys)
        needles = [haystack.encode(f"\n{_said(word)} {value}.\n") for word, value in zip(words, numbers)]
        context, place = haystack.build(needles[0], depth, dice, others=needles[1:])
        return Sample(
            context=context,
            question=torch.tensor(haystack.encode(f"\n{_said(words[0])}")),
            answer=torch.tensor(haystack.encode(f" {numbers[0]}")),
            place=place,
            chance=1 / self.keys if self.keys > 1 else 1 / 90_000,
        )


def _said(word: str) -> str:
    return f"The secret number of the {word} is"
