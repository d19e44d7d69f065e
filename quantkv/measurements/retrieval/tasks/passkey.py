"""Passkey: a number in endless idle sentences (Mohtashami and Jaggi 2023, arXiv:2305.16300)."""

import random

import torch

from quantkv.measurements.retrieval.tasks.base import Haystack, Sample, number

NOISE = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


class Passkey:
    name = "passkey"

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        key = number(dice)
        fact = haystack.encode(f" The pass key is {key}. Remember it. {key} is the pass key.")
        context, place = haystack.build(fact, depth, dice, filler=haystack.encode(NOISE))
        return Sample(
            context=context,
            question=torch.tensor(haystack.encode(" What is the pass key? The pass key is")),
            answer=torch.tensor(haystack.encode(f" {key}")),
            place=place,
            chance=1 / 90_000,
        )
