"""Lists among the arguments of evaluations: none empty, every value once, wrong ones refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.instruments.windows import check_counts


def distinct(name: str, given: Any, example: str) -> list[Any]:
    """The values of a list, each once; QuantKVError where it is empty or no list."""
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else []
    if not values:
        raise QuantKVError(f"{name} must be a list, such as {example}, not {given!r}")
    return [value for place, value in enumerate(values) if value not in values[:place]]


def list_of_counts(name: str, given: Sequence[int]) -> list[int]:
    """Lengths in tokens."""
    values = distinct(name, given, "[512, 2048]")
    for number in values:
        check_counts(**{name: number})
    return values


def list_of_names(name: str, given: Sequence[str], legal: Sequence[str]) -> list[str]:
    values = distinct(name, given, f"[{legal[0]!r}]")
    unknown = next((value for value in values if value not in legal), None)
    if unknown is not None:
        raise QuantKVError(f"{name}: unknown {unknown!r}; legal: {', '.join(legal)}")
    return values


def list_of_shares(name: str, given: Sequence[float]) -> list[float]:
    """Numbers from 0 to 1."""
    values = distinct(name, given, "[0.1, 0.5, 0.9]")
    wrong = next((x for x in values if not isinstance(x, Real) or not 0 <= x <= 1), None)  # type: ignore[operator]
    if wrong is not None:
        raise QuantKVError(f"{name} must be numbers from 0 to 1, got {wrong!r}")
    return values
