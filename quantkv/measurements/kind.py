"""What a kind of measurement says of itself: all that sweeps, reports and comparisons need to treat it."""

from __future__ import annotations

from typing import cast

from quantkv.rows import kinds
from quantkv.studies.kind import ReportedKind


class Kind(ReportedKind):
    """A kind of measurement. Its one object lies in its folder's `kind.py`; what is heavy is imported inside
    methods."""


def kind(name: str) -> Kind:
    """The kind of a name."""
    return cast(Kind, kinds.known(name))
