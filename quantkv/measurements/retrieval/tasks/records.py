"""Records: a list of JSON objects, copied from memory: after one of them and the beginning of the next, the
rest of that next one must follow, character by character."""

import itertools
import random

import torch

from quantkv.measurements.retrieval.tasks.base import Haystack, Sample
from quantkv.measurements.retrieval.tasks.words import WORDS

RECORDS = 4


class Records:
    """Somebody who knows the form but not which record comes next is right once in `RECORDS`."""

    name = "records"

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, 4 * RECORDS)
        records = [_record(words[i::RECORDS], dice.randint(10, 99)) for i in range(RECORDS)]
        context, place = haystack.build(haystack.encode("\n[\n" + "\n".join(records) + "\n]\n"), depth, dice)
        before, asked = dice.choice(list(itertools.pairwise(records)))
        given, space, rest = asked.partition(' "price"')
        return Sample(
            context=context,
            question=torch.tensor(haystack.encode(f"\n{before}\n{given}")),
            answer=torch.tensor(haystack.encode(space + rest)),
            place=place,
            chance=1 / RECORDS,
        )


def _record(words: list[str], price: int) -> str:
    item, color, tag, other = words
    return f'{{"item": "{item}", "price": {price}, "color": "{color}", "tags": ["{tag}", "{other}"]}},'
