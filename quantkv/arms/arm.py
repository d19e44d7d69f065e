"""An arm of a measurement: a format, a plain function `x -> x_hat`, the DynamicCache baseline or a peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quantkv.errors import UnsupportedError
from quantkv.peers.peer import PREFIX, Peer, parse_peer
from quantkv.spec.specs import CacheSpec, parse_spec

BASELINE = "dynamic"
Function = Callable[..., Any]
Parsed = CacheSpec | Peer | Function | str
Format = Parsed
Arm = CacheSpec | Peer | Function | None
"""What a cell is asked for: None is the ``DynamicCache``."""
Result = dict[str, Any]
OnArm = Callable[[str, Result], None]
Progress = Callable[[str, int, int], None]


def ignore(*_: object) -> None:
    """For those who want neither results nor progress at once."""


def parse_format(given: Format) -> Parsed:
    """A spec or a peer for text, the baseline's name as it is, functions as they are."""
    if isinstance(given, str) and given.startswith(PREFIX):
        return parse_peer(given)
    if given == BASELINE or isinstance(given, Peer) or is_function(given):
        return given
    return parse_spec(given)  # type: ignore[arg-type]


def is_function(given: Format | None) -> bool:
    return callable(given) and not isinstance(given, CacheSpec | Peer)


def format_name(given: Format) -> str:
    """What a format is called in tables: as typed, a spec's name, a function's name."""
    if isinstance(given, str):
        return given.removeprefix(PREFIX)
    if isinstance(given, Peer):
        return given.label
    return given.name if isinstance(given, CacheSpec) else getattr(given, "__name__", type(given).__name__)


def spec_text(parsed: Parsed) -> str:
    """The canonical text that a row carries."""
    return str(parsed) if isinstance(parsed, CacheSpec | Peer | str) else f"function:{format_name(parsed)}"


def success(kind: str, section: Result, effective: Result | None, seconds: float, **extra: Any) -> Result:
    """What `on_arm` gets for an arm that was measured."""
    return {"status": "ok", "reason": None, kind: section, "effective": effective, "seconds": seconds} | extra


def failure(kind: str, error: Exception, seconds: float) -> Result:
    """What `on_arm` gets for an arm not measured; `skipped` where the model cannot run the format."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    reason = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return {"status": status, "reason": reason, kind: None, "effective": None, "seconds": seconds}
