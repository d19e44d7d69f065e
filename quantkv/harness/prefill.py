"""How the context of a request came into the cache before its answer is scored.

Answers are always decoded token by token. A context that came in one exact call would leave the first answer
token, often the only one, to a query that reads no packed key; so by default its last token is decoded too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.decode_exact.schedule import ALL_BUT_LAST, chunk_size
from quantkv.decode_exact.simulate import protocol_calls
from quantkv.errors import QuantKVError

LEGAL = f"{ALL_BUT_LAST}, exact, stream, chunk:N, or a number of tokens"


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
