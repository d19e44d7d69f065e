"""The codecs and maps that a row was made with, told without loading any."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantkv.named import TENSOR_TEXTS
from quantkv.rows.files import Row
from quantkv.version import METHODS

_TENSOR = re.compile(r"(?:l-?\d+(?:--?\d+)?\.)?(?:[kv]\.)?(.+)")


def method_versions(row: Row) -> Iterator[tuple[str, int, int]]:
    """Of each of ours in the row's format: its name, the version that it had and the one that it has now.
    Keys hold a version that is not 1, and one that they do not hold is 1."""
    made = _keyed(row).get("methods") or {}
    for name in sorted(methods_in(str(row["requested"].get("spec") or ""))):
        yield name, made.get(name, 1), METHODS[name]


def _keyed(row: Row) -> Mapping[str, Any]:
    keyed = (row.get("provenance") or {}).get("keyed")
    return keyed[3] if isinstance(keyed, list) and len(keyed) == 4 and isinstance(keyed[3], Mapping) else {}


def methods_in(spec: str) -> set[str]:
    """Our methods in a short string."""
    return {name for part in spec.split("+") for name in _in_part(part)}


def _in_part(part: str) -> Iterator[str]:
    match = _TENSOR.fullmatch(part)
    head, _, words = (match[1] if match else "").partition("@")
    for text in TENSOR_TEXTS.get(head, (head,)):
        codec = text.partition("@")[0]
        names = [name for name in METHODS if codec == name or codec.startswith(f"{name}-")]
        yield from [max(names, key=len)] if names else []
    yield from (word for word in words.split(".") if word in METHODS)
