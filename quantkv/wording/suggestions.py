"""The legal name that a wrong one was most likely meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any


def nearest(name: str, legal: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """The legal name a user most likely meant."""
    found = difflib.get_close_matches(name.lower(), legal, n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(name: str, legal: Sequence[str]) -> str:
    """``; did you mean 'int4-head'?``, or nothing where no legal name is near."""
    found = nearest(name, legal)
    return f"; did you mean '{found}'?" if found not in (None, name) else ""


def not_one_of(given: Any, legal: Sequence[str]) -> str:
    """``'int4-haed' is not one of int4-head, int8-head; did you mean 'int4-head'?``"""
    return f"{given!r} is not one of {', '.join(legal)}{did_you_mean(str(given), legal)}"
