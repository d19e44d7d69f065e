"""Finding the request behind a row of a batch.

lm-eval cuts the last token off each request, pads on the right with token 0 and hands the model nothing but
the padded tokens. A row is found again by its tokens without trailing zeros. Requests that would be mistaken
for each other, such as one input split into context and answer at two places, run in different waves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quantkv.errors import QuantKVError


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of a request that the model is fed, and how many of them are context: the query of the last of
    those predicts the first answer token."""

    length: int
    context: int


@dataclass
class Wave:
    """Requests of which no two can be mistaken for each other: their places in the list, and their rows by
    tokens."""

    indices: list[int] = field(default_factory=list)
    rows: dict[tuple[int, ...], Row] = field(default_factory=dict)

    def find(self, batch: Tensor) -> list[Row]:
        """The rows of a padded batch `[B, T]`; QuantKVError where one belongs to no request."""
        found = [self.rows.get(_without_zeros(tokens)) for tokens in batch.tolist()]
        rows = [row for row in found if row is not None]
        if len(rows) < len(found):
            raise QuantKVError("lm-eval gave the model tokens that belong to no request of this run")
        return rows


def split_in_waves(requests: Sequence[tuple[Any, list[int], list[int]]], max_length: int) -> list[Wave]:
    """Requests are (name, context tokens, answer tokens); at most `max_length` tokens, the last ones, are
    fed."""
    waves: list[Wave] = []
    for index, (_, context, answer) in enumerate(requests):
        fed = (context + answer)[:-1][-max_length:]
        row, key = Row(len(fed), len(fed) - len(answer) + 1), _without_zeros(fed)
        wave = next((wave for wave in waves if wave.rows.get(key, row) == row), None)
        if wave is None:
            waves.append(wave := Wave())
        wave.indices.append(index)
        wave.rows[key] = row
    return waves


def _without_zeros(tokens: Sequence[int]) -> tuple[int, ...]:
    end = len(tokens)
    while end and tokens[end - 1] == 0:
        end -= 1
    return tuple(tokens[:end])
