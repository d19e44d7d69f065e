"""Which tokens stay exact, and when the oldest exact tokens are packed: a function of lengths alone.

With `n` tokens cached before the current query, tokens `[sinks, boundary(n))` are packed and the rest is
exact:

    boundary(n) = sinks + flush * floor(max(0, n - sinks - recent) / flush)

so at least the last `recent` tokens are exact at every step. (recent, flush) = (0, 128) is KIVI's rule for
keys and (128, 1) its rule for values (Liu et al. 2024). Exact tokens from `boundary(n - reserve)` on stay
held so that going back by up to `reserve` tokens is bit-equal to never having gone forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from quantkv.plugins import Registry

Length = TypeVar("Length", int, Tensor)


@dataclass(frozen=True, slots=True)
class Window:
    """The policy of one tensor (keys or values). All lengths are in tokens."""

    sinks: int
    recent: int
    flush: int
    reserve: int
    after: int = 0
    """Nothing is packed until more than this many tokens are cached."""

    def boundary(self, n: Length) -> Length:
        """The first position after the sinks that is not packed at `n` tokens; ints or integer tensors."""
        past = (n - self.sinks - self.recent) * (n > self.after)
        past = past.clamp_min(0) if isinstance(past, Tensor) else max(0, past)
        return self.sinks + past // self.flush * self.flush

    def packed(self, n: int) -> int:
        """How many tokens are packed when `n` are cached."""
        return self.boundary(n) - self.sinks

    @property
    def capacity(self) -> int:
        """Exact tokens held after the sinks: the window, one chunk in the making, and the reserve."""
        return self.recent + self.flush + self.reserve

    def capacity_at(self, length: int, pad: int = 0) -> int:
        """Exact tokens for which there is room when `length` tokens, `pad` of them padding, are cached.

        While nothing is packed yet (`after`) everything is held, in a room that doubles.
        """
        waiting = self.after + self.reserve + pad
        if not self.after or length > waiting:
            return self.capacity
        return max(self.capacity, min(waiting, 1 << max(0, length - 1).bit_length()))


def register_policy(name: str, policy: type[Window]) -> None:
    """Add a policy under a name that specs can say (`+p.name`).

    A policy is a subclass of `Window` with its own `boundary` (and `capacity_at`, where more exact tokens
    are held). `boundary` may only grow, moves by whole flush chunks from `sinks` on, and never passes `n`.
    """
    POLICIES.add(name, policy, policy.__module__)


ENTRY_POINTS = "quantkv.policies"
"""Installed packages offer policies under this entry-point group: named subclasses of `Window`."""
POLICIES: Registry[type[Window]] = Registry("policy", ENTRY_POINTS, register_policy)
register_policy("window", Window)


def policy_named(name: str) -> type[Window]:
    """The policy registered under `name`; QuantKVError naming the legal ones otherwise."""
    return POLICIES.get(name)
