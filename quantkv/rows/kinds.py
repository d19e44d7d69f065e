"""The one list of kinds of measurement. Whoever treats kinds alike asks here; a kind's own folder alone knows
what it is.

A kind of ours is named below and imported when it is asked for; one from outside is registered by a file
named under `import:`, or offered by a package under the entry-point group `quantkv.kinds`.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.plugins import HINT, Origin, Registry

BUILT_IN = {
    name: f"quantkv.measurements.{name}.kind"
    for name in ("quality", "speed", "memory", "retrieval", "generation")
}
"""In the order of a row's sections. Each module holds its kind as `KIND`."""
ENTRY_POINTS = "quantkv.kinds"
CODEC_VERSION = 2
"""Part of every key, beside the version of its kind. It goes up when every codec stores other codes for the
same input; where one does, its own version goes up, in `quantkv.version.METHODS`."""
TAKEN = (
    "schema", "kind", "key", "status", "reason", "requested", "effective", "protocol", "provenance",
    "import", "models", "formats", "policy", "contexts", "batch_sizes", "seeds", "run", "report",
    "imports", "version", "kinds", "section", "workers", "copy", "json", "dict", "construct", "validate",
)  # fmt: skip
"""Other parts of a row, of a sweep file, or of what is read from it."""


class RowKind:
    """What readers of rows know of a kind. Light: it loads neither torch nor pandas."""

    name: str
    version: int = 1
    """Part of every key. It goes up whenever the same run would give another value, so that old results are
    never mixed with new ones unnoticed."""
    of_machine: bool = False
    """Whether its numbers belong to a machine and its threads, not to the tokens that a seed picks."""
    alone: bool = False
    """Whether each cell is a process of its own, measured last, when the model is dropped."""
    together: bool = False
    """Whether the arms of a block hold their caches at the same time."""
    by_engine: bool = True
    """Whether the engine that serves a packed cache changes its numbers."""
    part: str = ""
    """The setting of its protocol that tells rows of one table apart, such as a task."""
    metrics: tuple[str, ...] = ()
    """Its single numbers, in the order of tables and frames."""
    published: tuple[str, ...] = ()
    """Those of them that may be taken from others."""
    arrays: str = ""
    """Which of its numbers says how many values each array beside a row holds; none where rows have none."""


def register_kind(kind: RowKind) -> None:
    """Make a kind known under its name, which is its section of a sweep file and of a row."""
    free = re.fullmatch(r"(?!model_)[a-z][a-z0-9_]*", kind.name) and kind.name not in (*BUILT_IN, *TAKEN)
    if not free:
        raise QuantKVError(f"a kind of measurement cannot be called {kind.name!r}: give it a name of its own")
    REGISTERED.add(kind.name, kind, type(kind).__module__)


def _take(name: str, value: Any) -> None:
    """Register what an entry point holds: a kind, or a module that registers its own."""
    if isinstance(value, RowKind):
        register_kind(value)


REGISTERED: Registry[RowKind] = Registry("kind of measurement", ENTRY_POINTS, _take)


def names() -> tuple[str, ...]:
    """All kinds, ours first, in the order of a row's sections."""
    return (*BUILT_IN, *REGISTERED.names())


def measured() -> tuple[str, ...]:
    """All kinds in the order in which a sweep measures them: what a model says before what it takes, and last
    those that drop the model."""
    return tuple(sorted(names(), key=lambda name: (known(name).alone, known(name).of_machine)))


def known(name: str) -> RowKind:
    """The kind of a name; QuantKVError naming the legal ones where there is none."""
    if name in BUILT_IN:
        kind: RowKind = import_module(BUILT_IN[name]).KIND
        return kind
    if name not in names():
        raise QuantKVError(f"kind must be one of {', '.join(names())}, got {name!r}; {HINT}")
    return REGISTERED.get(name)


def origin(name: str) -> Origin | None:
    """Where a kind from outside comes from; None for ours."""
    return None if name in BUILT_IN else REGISTERED.origin(name)


def versions() -> dict[str, int]:
    """The version of every kind's numbers."""
    return {name: known(name).version for name in names()}
