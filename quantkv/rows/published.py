"""Numbers of others, from a paper or another toolkit, as rows of our schema that say where they are from.

A file holds one line per format and context: CSV with a header, or JSON or YAML with a list of mappings. Such
rows make tables of their own and are never ranked beside measured ones. Intervals are refused: they belong to
windows that nobody here has seen.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.rows.kinds import known, names
from quantkv.rows.row import build_row

REQUIRED = ("model", "format", "context")
OPTIONAL = ("batch", "dtype", "text", "citation", "source")
SHARES = ("top1_agreement",)
SIGNED = ("delta_nll",)
Entry = Mapping[str | None, Any]


def external_rows(path: str | Path, citation: str | None = None) -> list[dict[str, Any]]:
    """The result rows of a file: one for each kind of number that an entry has.

    `citation` says where they are from; an entry's own `citation` stands behind it. Raises QuantKVError
    naming the entry and the legal settings.
    """
    path = Path(path)
    rows = []
    for place, entry in _entries(path):
        try:
            rows += list(_rows(entry, citation))
        except QuantKVError as error:
            raise QuantKVError(f"{path.name}, {place}: {error}") from None
    if not rows:
        raise QuantKVError(f"{path.name} holds no entries")
    return rows


def import_file(path: str | Path, folder: str | Path, citation: str | None = None) -> list[Path]:
    """Write the rows of a file into a results folder; returns what was written."""
    from quantkv.rows.claims import prepare_folder
    from quantkv.rows.files import write_row

    rows = external_rows(path, citation)
    place = prepare_folder(folder)
    return [write_row(row, place) for row in rows]


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """What the file holds and, for messages, where in it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise QuantKVError(f"cannot read {path}: {error}") from None
    if path.suffix == ".csv":
        for line, entry in enumerate(csv.DictReader(io.StringIO(text)), start=2):
            yield f"line {line}", {name: value for name, value in entry.items() if value not in (None, "")}
        return
    found = _parsed(path, text)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise QuantKVError(
            f"{path.name} must hold a list of mappings such as {{model: …, format: …, context: …}}"
        )
    yield from ((f"entry {number}", entry) for number, entry in enumerate(found, start=1))


def _parsed(path: Path, text: str) -> Any:
    import yaml

    readers: dict[str, Any] = {".json": json.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    if path.suffix not in readers:
        raise QuantKVError(f"{path.name}: cannot import {path.suffix or 'this'}; legal: .csv, .json, .yaml")
    try:
        return readers[path.suffix](text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise QuantKVError(f"{path.name} is not valid: {' '.join(str(error).split())}") from None


def _rows(entry: Entry, citation: str | None) -> Iterator[dict[str, Any]]:
    _check_names(entry)
    given = (str(said or "").strip() for said in (citation, entry.get("citation")))
    source = ", ".join(dict.fromkeys(filter(None, given)))
    if not source:
        raise QuantKVError("says not where it is from: give --source, or a citation for each entry")
    values = {name: _number(name, entry[name]) for name in _numbers() if entry.get(name) is not None}
    if not values:
        raise QuantKVError(f"holds no number; legal: {', '.join(_numbers())}")
    requested = _requested(entry)
    for kind in names():
        section = {name: values[name] for name in known(kind).published if name in values}
        if section:
            yield _row(kind, requested, section, source, entry.get("text"))


def _numbers() -> list[str]:
    return [number for kind in names() for number in known(kind).published]


def _check_names(entry: Entry) -> None:
    legal = (*REQUIRED, *OPTIONAL, *_numbers())
    if None in entry:  # what csv calls the values beyond the last column
        raise QuantKVError(f"has more values than the header has columns: {entry[None]}")
    unknown = next((name for name in entry if name not in legal), None)
    if unknown is not None and str(unknown).endswith(("_low", "_high")):
        raise QuantKVError(f"{unknown}: intervals of others are not imported")
    if unknown is not None:
        raise QuantKVError(f"unknown setting {unknown!r}; legal: {', '.join(legal)}")
    missing = next((name for name in REQUIRED if entry.get(name) in (None, "")), None)
    if missing is not None:
        raise QuantKVError(f"{missing} is required")
    if entry.get("source", "external") != "external":
        raise QuantKVError("source can only be external; where it is from is its citation")


def _requested(entry: Entry) -> dict[str, Any]:
    label, dtype = str(entry["format"]), str(entry.get("dtype") or "unstated")
    asked: dict[str, Any] = {"model": str(entry["model"]), "revision": None, "dtype": dtype, "attn": None}
    asked |= {"format": label, "spec": f"external:{label}"}
    return asked | {name: _count(name, entry.get(name, 1)) for name in ("context", "batch")} | {"seed": 0}


def _row(
    kind: str, requested: dict[str, Any], section: dict[str, Any], source: str, text: Any
) -> dict[str, Any]:
    protocol = {"source": "external"} | ({"text": str(text)} if text else {})
    made = {"source": "external", "citation": source}
    content = json.dumps([kind, requested, section, protocol, made], sort_keys=True)
    ran = {"spec": requested["spec"], "engine": "external", "notes": []}
    key = hashlib.sha256(content.encode()).hexdigest()
    return build_row(kind, requested, ran, protocol, section | {"flags": []}, made, key=key)


def _number(name: str, given: Any) -> float:
    try:
        value = float(None if isinstance(given, bool) else given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise QuantKVError(f"{name}: {given!r} is no number") from None
    if not math.isfinite(value) or (value < 0 and name not in SIGNED):
        raise QuantKVError(f"{name}: {given!r} must be finite and not negative")
    if name in SHARES and value > 1:
        raise QuantKVError(f"{name}: {given!r} must be a share from 0 to 1")
    return value


def _count(name: str, given: Any) -> int:
    try:
        value = int(str(given))
    except ValueError:
        value = 0
    if value < 1:
        raise QuantKVError(f"{name}: {given!r} must be a whole number of at least 1")
    return value
