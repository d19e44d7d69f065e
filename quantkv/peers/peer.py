"""A peer: another project's cache by name, in this interpreter or another.

Names are short strings like those of formats: `peer:quanto-int4`, `peer:kvpress-knorm-0.5+int4-head`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError
from quantkv.peers.presses import PRESSES, Press, find_press
from quantkv.peers.stock import STOCK, Stock
from quantkv.spec.specs import parse_spec
from quantkv.wording.suggestions import did_you_mean

if TYPE_CHECKING:
    from quantkv.spec.specs import CacheSpec

PREFIX = "peer:"
LEGAL = (*STOCK, *(f"kvpress-{press}-RATIO" for press in PRESSES))


@dataclass(frozen=True, slots=True)
class Peer:
    """`python`: the interpreter that has the peer's packages (None: this one). `on_top`: what packs the keys
    and values that a press leaves."""

    name: str
    made_by: Stock | Press
    python: str | None = None
    on_top: CacheSpec | None = None

    def __str__(self) -> str:
        """The canonical text; the same cache in another interpreter is another arm."""
        place = "@other" if self.python else ""
        return f"{PREFIX}{self.name}{place}" + (f"+{self.on_top}" if self.on_top else "")

    @property
    def label(self) -> str:
        return self.name + (f"+{self.on_top.name}" if self.on_top else "")

    @property
    def recipe(self) -> dict[str, Any]:
        return self.made_by.recipe

    @property
    def is_press(self) -> bool:
        return isinstance(self.made_by, Press)

    @property
    def packages(self) -> tuple[str, ...]:
        """What determines the peer's numbers, as package names."""
        return ("torch", "transformers", *filter(None, [self.made_by.package]))

    @property
    def engine(self) -> str:
        """What a row names as the maker of the cache."""
        return "kvpress" if isinstance(self.made_by, Press) else self.made_by.backend


def parse_peer(text: str, *, python: str | None = None, **policy: int | None) -> Peer:
    """A peer from its name, with or without `peer:`; `policy` is that of a format on top of a press.

    Raises QuantKVError naming the legal ones, and where there is no such interpreter.
    """
    name, plus, top = text.removeprefix(PREFIX).partition("+")
    made_by = STOCK.get(name) or find_press(name)
    if made_by is None:
        raise QuantKVError(_unknown(name))
    if plus and not isinstance(made_by, Press):
        raise QuantKVError(f"{name} packs its own keys and values: a format on top needs a press (kvpress-…)")
    if python is not None and shutil.which(python) is None:
        raise QuantKVError(f"python: there is no interpreter {python!r}")
    return Peer(name, made_by, python, parse_spec(top, **policy) if plus else None)


def _unknown(name: str) -> str:
    legal = f"{', '.join(LEGAL)}, with 0 < RATIO < 1 such as 0.5"
    return f"unknown peer {name!r}; legal: {legal}{did_you_mean(name, LEGAL)}"
