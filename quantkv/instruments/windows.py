"""Evaluation windows: every context and every format scores the same target tokens.

Windows end at the same places of the text and reach back as far as the context asks. With windows that
start at the same place instead, each context would score other tokens and the comparison would be void.
Windows scored whole, as papers do, are cut one after another and know one context only: their length.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from quantkv.errors import QuantKVError


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows of a text end; `at(context)` cuts them out."""

    ids: Tensor
    ends: tuple[int, ...]
    score: int
    span: int
    bos_id: int | None = None

    @property
    def starts(self) -> list[int]:
        """Text position of the first scored target of each window: the same for every context."""
        return [end - self.score for end in self.ends]

    def at(self, context: int) -> list[Tensor]:
        if not 1 <= context <= self.span:
            raise QuantKVError(
                f"context {context} is outside 1..{self.span}, the span these windows were made for"
            )
        return [window(self.ids, end, context, score=self.score, bos_id=self.bos_id) for end in self.ends]


def window(ids: Tensor, end: int, context: int, *, score: int, bos_id: int | None = None) -> Tensor:
    """The context + score + 1 ids whose last one is `ids[end - 1]`.

    The first `context` are prefilled, the `score` after them are the queries, and the queries' next tokens
    are the targets. A BOS takes the place of the oldest token, so that the context counts it.
    """
    length = context + score + 1
    if bos_id is None:
        return ids[end - length : end].clone()
    return torch.cat([ids.new_tensor([bos_id]), ids[end - length + 1 : end]])


def make_windows(
    ids: Tensor, *, span: int, score: int, windows: int, seed: int = 0, bos_id: int | None = None
) -> Windows:
    """Spread `windows` targets of `score` tokens over the text, one per stratum, none overlapping.

    `span` is the largest context that will be asked for; it decides which part of the text can be scored,
    so runs that should share their targets need the same `span`.
    """
    check_counts(span=span, score=score, windows=windows)
    ids = torch.as_tensor(ids, dtype=torch.long).flatten()
    first = span + 1 - (bos_id is not None)
    room = len(ids) - first
    if room < windows * score:
        raise QuantKVError(
            f"the text is too short: {windows} windows of {score} scored tokens after a context of {span} "
            f"need {first + windows * score} tokens, there are {len(ids)}; use a longer text, fewer windows "
            "or a shorter context"
        )
    picks = random.Random(seed)
    strata = [(first + i * room // windows, first + (i + 1) * room // windows) for i in range(windows)]
    starts = [picks.randint(low, high - score) for low, high in strata]
    return Windows(ids, tuple(start + score for start in starts), score, span, bos_id)


@dataclass(frozen=True, slots=True)
class WholeWindows:
    """Consecutive windows of `length` ids from the start of a text, all but the first id of each scored."""

    ids: Tensor
    length: int
    count: int

    @property
    def starts(self) -> list[int]:
        """Text position of the first scored target of each window."""
        return [i * self.length + 1 for i in range(self.count)]

    def at(self, context: int) -> list[Tensor]:
        if context != self.length:
            raise QuantKVError(f"these windows are scored whole: context {self.length} only, not {context}")
        return list(self.ids[: self.count * self.length].split(self.length))


def whole_windows(ids: Tensor, *, length: int, windows: int | None = None) -> WholeWindows:
    """The first `windows` windows of `length` tokens, or as many as the text holds; a rest is left out."""
    check_counts(length=length, windows=1 if windows is None else windows)
    ids = torch.as_tensor(ids, dtype=torch.long).flatten()
    count = len(ids) // length if windows is None else windows
    if count * length > len(ids) or not count:
        raise QuantKVError(
            f"the text is too short: {count or 1} whole windows of {length} tokens need "
            f"{(count or 1) * length}, there are {len(ids)}"
        )
    return WholeWindows(ids, length, count)


def digest(samples: Sequence[Tensor]) -> str:
    """SHA-256 over samples of one length: the tokens of a number, as they go into its row's key."""
    return hashlib.sha256(torch.stack(list(samples)).numpy().tobytes()).hexdigest()


def feed_tokens(ids: Tensor, batch: int, length: int) -> Tensor:
    """[batch, length] tokens: every row another stretch of the text, which starts over where it ends."""
    starts = torch.arange(batch)[:, None] * (len(ids) // batch)
    return ids[(starts + torch.arange(length)[None]) % len(ids)]


def scored_length(windows: Sequence[Tensor], context: int) -> int:
    """How many tokens each of these windows scores at `context`; all must agree."""
    lengths = {len(ids) - context - 1 for ids in windows}
    if len(lengths) != 1 or min(lengths) < 1:
        raise QuantKVError(
            f"windows for context {context} must all hold context + score + 1 ids with score >= 1, "
            f"got lengths {sorted({len(ids) for ids in windows})}"
        )
    return lengths.pop()


def check_counts(least: int = 1, **counts: object) -> None:
    """Raise QuantKVError naming the first that is no whole number of at least `least`."""
    for name, value in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
            raise QuantKVError(f"{name} must be a whole number of at least {least}, got {value!r}")
