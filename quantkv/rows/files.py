"""Result files: one JSON per finished cell, written whole, so that a killed sweep leaves whole rows or none.
Tables and plots are made from these files and from nothing else.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.files import write_whole
from quantkv.plugins import HINT
from quantkv.rows.kinds import names
from quantkv.rows.row import SCHEMA, STATUSES, strict_json

HALF = r"\ud"
"""How JSON writes a half of a character."""

Row = dict[str, Any]


class UnknownKind(QuantKVError):
    """What is said of a row whose kind nothing here knows, beginning with its verb."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"is of the kind of measurement {kind!r}, which is not known here ({HINT})")


def row_name(row: Mapping[str, Any]) -> str:
    """``quality-int4-head-c2048-0123456789ab.json``."""
    asked = row["requested"]
    label = re.sub(r"[^a-z0-9.@+-]+", "-", str(asked["format"]).lower()).strip("-.")[:100]
    return f"{row['kind']}-{label}-c{asked['context']}-{row['key'][:12]}.json"


def write_row(row: Mapping[str, Any], folder: str | Path, *, tokens: Mapping[str, Any] | None = None) -> Path:
    """Write one row so that a reader sees all of it or nothing; older rows of the same cell go.

    ``tokens`` are per-token arrays, kept beside the row in a ``.npz`` file of the same name.
    """
    folder = Path(folder)
    path = folder / row_name(row)
    if tokens is not None:
        write_whole(path.with_suffix(".npz"), _npz(tokens))
    text = json.dumps(strict_json(row), indent=1, allow_nan=False) + "\n"
    write_whole(path, text.encode())
    for old in folder.glob(f"{row['kind']}-*-{row['key'][:12]}.*"):
        if old.stem != path.stem:
            old.unlink(missing_ok=True)
    return path


def _npz(arrays: Mapping[str, Any]) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def read_rows(path: str | Path, *, warn: Callable[[str], None] | None = None) -> list[Row]:
    """The rows of a folder or of one file; a truncated or foreign file is reported once and left alone."""
    path = Path(path)
    if not path.exists():
        raise QuantKVError(f"no results at {path}: the folder does not exist")
    found: dict[tuple[str, str], Row] = {}
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        row = _known_row(file, warn or (lambda message: warnings.warn(message, stacklevel=3)))
        if row is None:
            continue
        known = found.get((row["kind"], row["key"]))
        if known is None or rank(known) < rank(row):
            found[row["kind"], row["key"]] = row
    return list(found.values())


def rank(row: Row) -> int:
    """The larger, the better a row tells of its cell."""
    return ("failed", "skipped", "ok").index(row["status"])


def rows_there(folder: Path) -> list[Row]:
    """The rows of a folder that may be yet to come, without a word of files that are none."""
    return read_rows(folder, warn=lambda _: None) if folder.is_dir() else []


def _known_row(file: Path, warn: Callable[[str], None]) -> Row | None:
    try:
        row = read_row(file)
        why = None if row else f"is not a quantkv result (schema {SCHEMA}) and is ignored"
    except UnknownKind as error:
        row, why = None, f"{error} and is ignored"
    except (OSError, ValueError) as error:
        row, why = None, f"is not a whole result file and is ignored ({error})"
    if why:
        warn(f"{file.name} {why}")
    return row


def read_row(file: Path, parse_constant: Callable[[str], Any] | None = None) -> Row | None:
    """The row in a file, None where it holds something else; OSError or ValueError where it is not whole,
    UnknownKind where nothing here knows its kind. ``parse_constant`` is called with NaN and infinities, as
    ``json.loads`` does."""
    text = file.read_text(encoding="utf-8")
    row = json.loads(text, parse_constant=parse_constant)
    row = strict_json(row) if HALF in text else row
    if not is_row(row):
        return None
    if row["kind"] not in names():
        raise UnknownKind(row["kind"])
    return dict(row)


def is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and row.get("schema") == SCHEMA
        and isinstance(row.get("kind"), str)
        and row.get("status") in STATUSES
        and isinstance(row.get("key"), str)
        and _is_request(row.get("requested"))
        and all(isinstance(row.get(part), dict | None) for part in ("effective", "protocol", "provenance"))
        and (row["status"] != "ok" or isinstance(row.get(row["kind"]), dict))
    )


def _is_request(asked: Any) -> bool:
    return (
        isinstance(asked, dict)
        and isinstance(asked.get("format"), str)
        and isinstance(asked.get("context"), int)
    )
