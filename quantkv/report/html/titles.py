"""What the plots of the page are called."""

from __future__ import annotations

from collections.abc import Iterable


def against(what: str, contexts: Iterable[int]) -> str:
    """Against context, or at the only one: such a plot has a place for each format instead."""
    found = set(contexts)
    return f"{what} at {found.pop()} tokens" if len(found) == 1 else f"{what} against context"
