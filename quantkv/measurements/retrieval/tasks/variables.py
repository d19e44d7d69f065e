"""Variable tracking (after RULER, arXiv:2404.06654): names set to numbers, other names set to those names,
and one of the latter to be resolved."""

import random

import torch

from quantkv.measurements.retrieval.tasks.base import Haystack, Sample
from quantkv.measurements.retrieval.tasks.words import WORDS

CHAINS = 6
SHOWN = 2
"""Chains that the question resolves itself, to show how."""


class Variables:
    """The answer names the variable in between and its number; who guesses picks a chain not shown."""

    name = "variables"

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, 2 * CHAINS)
        digits = dice.sample("123456789", CHAINS)
        chains = [
            (name, inner, f"{digit}{dice.randint(1000, 9999)}")
            for name, inner, digit in zip(words[:CHAINS], words[CHAINS:], digits)
        ]
        lines = [f"{inner} = {value}\n" for _, inner, value in chains]
        links = [f"{name} -> {inner}\n" for name, inner, _ in chains]
        dice.shuffle(lines)
        dice.shuffle(links)
        context, place = haystack.build(haystack.encode("\n" + "".join(lines + links)), depth, dice)
        (name, inner, value), shown = chains[0], chains[1 : 1 + SHOWN]
        resolved = "".join(f"{left} -> {middle} = {right}\n" for left, middle, right in shown)
        return Sample(
            context=context,
            question=torch.tensor(haystack.encode(f"\n{resolved}{name} ->")),
            answer=torch.tensor(haystack.encode(f" {inner} = {value}")),
            place=place,
            chance=1 / (CHAINS - SHOWN),
        )
