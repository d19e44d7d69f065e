"""What tasks of retrieval are made of: a context of an exact number of tokens, a question, and the answer.

The context is made of token ids, piece by piece, never by tokenizing the whole again, so that its length and
the places of its facts are exact. What the answer needs lies between the first `HEAD` tokens and the last
`tail`: never among the sinks, and never in the recent window or the chunk in the making, where every format
is exact.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantkv.errors import QuantKVError

HEAD = 16
"""Tokens at the start that hold no fact."""
TAIL = 160
"""Tokens at the end that hold no fact: more than the window and flush chunk of any preset."""

Ids = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question: `context` `[length]` is cached first, `question` `[q]` and `answer` `[a]` follow.

    `place` is the (start, stop) of what the answer needs in the context; `chance` is the share of right
    answers of somebody who knows the form of the answers but not which one was asked for.
    """

    context: Tensor
    question: Tensor
    answer: Tensor
    place: tuple[int, int]
    chance: float


class Haystack:
    """A context of `length` tokens in the making: takes text as filler and puts facts at exact places."""

    def __init__(
        self, tokenizer: Any, filler: Tensor, length: int, *, tail: int = TAIL, bos_id: int | None = None
    ) -> None:
        check_room(length, tail)
        self.tokenizer, self.length, self.tail = tokenizer, length, tail
        self._filler, self._start = filler.flatten().tolist(), [] if bos_id is None else [bos_id]

    def encode(self, text: str) -> Ids:
        """Token ids of a piece of text, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def build(
        self,
        fact: Ids,
        depth: float,
        dice: random.Random,
        *,
        others: Sequence[Ids] = (),
        filler: Ids | None = None,
    ) -> tuple[Tensor, tuple[int, int]]:
        """The context `[length]` with `fact` at `depth`, and the (start, stop) of the fact.

        `others` are scattered around it in the same legal range; `filler` repeats in place of the text.
        """
        place = self._place(len(fact), depth)
        stop = self.length - self.tail
        text = _Text(filler or self._filler, dice)
        start = self._start + text.take(HEAD - len(self._start))
        before, after = _shared_out(others, place - HEAD, stop - place - len(fact), dice)
        ids = start + text.around(before, place - HEAD, dice) + fact
        ids += text.around(after, stop - len(ids), dice) + text.take(self.tail)
        return torch.tensor(ids), (place, place + len(fact))

    def sample(
        self, built: tuple[Tensor, tuple[int, int]], question: str, answer: str, chance: float
    ) -> Sample:
        """What is asked of a context that was built, in words."""
        context, place = built
        asked, right = (torch.tensor(self.encode(text)) for text in (question, answer))
        return Sample(context=context, question=asked, answer=right, place=place, chance=chance)

    def _place(self, size: int, depth: float) -> int:
        if not 0 <= depth <= 1:
            raise QuantKVError(f"depth {depth} is outside 0..1")
        room = self.length - self.tail - HEAD - size
        if room < 0:
            raise QuantKVError(
                f"a context of {self.length} tokens has no room for a fact of {size} between its first "
                f"{HEAD} and its last {self.tail} tokens; use a longer context or a smaller tail"
            )
        return HEAD + round(depth * room)


def check_room(length: int, tail: int) -> None:
    """Raise where a context has no token between its first `HEAD` and its last `tail`."""
    if length - tail <= HEAD:
        raise QuantKVError(
            f"a context of {length} tokens has no room for facts between its first {HEAD} and its last "
            f"{tail} tokens; use a longer context or a smaller tail"
        )


class _Text:
    """Filler read on from a random place, starting over at its end."""

    def __init__(self, ids: Ids, dice: random.Random) -> None:
        self.ids, self.at = ids, dice.randrange(len(ids))

    def take(self, count: int) -> Ids:
        taken = [self.ids[(self.at + i) % len(self.ids)] for i in range(count)]
        self.at += count
        return taken

    def around(self, pieces: Sequence[Ids], size: int, dice: random.Random) -> Ids:
        """Exactly `size` tokens: the pieces in their order, at random places of the filler."""
        spare = size - sum(map(len, pieces))
        cuts = sorted(dice.randint(0, spare) for _ in pieces)
        ids: Ids = []
        for piece, upto, since in zip(pieces, cuts, [0, *cuts]):
            ids += self.take(upto - since) + piece
        return ids + self.take(size - len(ids))


def _shared_out(
    pieces: Sequence[Ids], before: int, after: int, dice: random.Random
) -> tuple[list[Ids], list[Ids]]:
    """The pieces on two sides with room for `before` and `after` tokens: by chance, where both have room."""
    room = [before, after]
    sides: tuple[list[Ids], list[Ids]] = ([], [])
    for piece in pieces:
        side = 0 if dice.random() * sum(room) < room[0] else 1
        side = side if room[side] >= len(piece) else 1 - side
        if room[side] < len(piece):
            raise QuantKVError(
                f"the facts of this task do not fit beside each other in {before + after} tokens; "
                "use a longer context"
            )
        sides[side].append(piece)
        room[side] -= len(piece)
    return sides
