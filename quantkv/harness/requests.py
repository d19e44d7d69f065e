"""The request behind a row of a batch, and how its context came into the cache before its answer is scored.

lm-eval cuts the last token off each request, pads on the right with token 0 and hands the model nothing but
the padded tokens. A row is found again by its tokens without trailing zeros. Requests that would be mistaken
for each other, such as one input split into context and answer at two places, run in different waves.

Answers are always decoded token by token. A context that came in one exact call would leave the first answer
token, often the only one, to a query that reads no packed key; so by default its last token is decoded too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quantkv.decode_exact.schedule import ALL_BUT_LAST, chunk_size
from quantkv.decode_exact.simulate import protocol_calls
from quantkv.errors import QuantKVError

LEGAL = f"{ALL_BUT_LAST}, exact, stream, chunk:N, or a number of tokens"


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


@dataclass(frozen=True, slots=True)
class ContextPrefill:
    """`all_but_last`: all but the context's last token in one call. `exact`: the whole context in one call.
    `stream`: token by token. `chunk:N`: in calls of N tokens. A number: so many tokens in one call, at most
    the context."""

    name: str

    @classmethod
    def parse(cls, given: str | int) -> ContextPrefill:
        """Raises QuantKVError naming the legal values."""
        name = str(given)
        known = name in (ALL_BUT_LAST, "exact", "stream") or name.isdecimal()
        if not known and not chunk_size(name):
            raise QuantKVError(f"prefill {name!r}; legal: {LEGAL}")
        return cls(name)

    def passes(self, contexts: Sequence[int]) -> list[tuple[list[int], dict[str, Any]]]:
        """Which rows, of these context lengths, may run in one pass, and how `simulate` is to take them."""
        if not chunk_size(self.name):
            return [(list(range(len(contexts))), {"prefill": [self._first_call(n) for n in contexts]})]
        return [
            ([i for i, n in enumerate(contexts) if n == length], protocol_calls(self.name, length))
            for length in sorted(set(contexts))
        ]

    def _first_call(self, context: int) -> int:
        if self.name.isdecimal():
            return min(int(self.name), context)
        return {ALL_BUT_LAST: context - 1, "exact": context, "stream": 0}[self.name]
