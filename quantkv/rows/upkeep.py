"""Looking after a folder of results: which rows are of another version, and which files are not whole."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from quantkv.errors import QuantKVError
from quantkv.rows.files import Row, UnknownKind, read_row, row_name
from quantkv.rows.kinds import CODEC_VERSION, known
from quantkv.rows.methods import method_versions


@dataclass(frozen=True)
class Stored:
    """A result file and its row."""

    path: Path
    row: Row

    @property
    def sidecar(self) -> Path:
        """Where the per-token arrays of the row lie, if it has any."""
        return self.path.with_suffix(".npz")

    def delete(self) -> None:
        for path in (self.path, self.sidecar):
            path.unlink(missing_ok=True)


def stored(folder: Path) -> list[Stored]:
    """Every row in the folder, older rows of a cell too. Files that are no rows are left out, rows of
    unknown kinds with a warning."""
    if not folder.is_dir():
        raise QuantKVError(f"no results at {folder}: there is no such folder")
    read = [(path, _read(path)) for path in sorted(folder.glob("*.json"))]
    for path, row in read:
        if isinstance(row, UnknownKind):
            warnings.warn(f"{path.name} {row} and is left out", stacklevel=2)
    return [Stored(path, row) for path, row in read if isinstance(row, dict)]


def _read(path: Path) -> Row | str | UnknownKind:
    """The row, or why it is none."""
    try:
        return read_row(path, _not_finite) or "no quantkv result"
    except UnknownKind as error:
        return error
    except (OSError, ValueError) as error:
        return f"no whole result file: {error}"


def _not_finite(word: str) -> None:
    raise ValueError(f"it holds {word}, which JSON has not")


def outdated(row: Row) -> str | None:
    """Which version the row is of, where it is not today's; None for rows that are current, or of others."""
    return next(
        (f"{name} version {made}, now {now}" for name, made, now in _versions(row) if made != now), None
    )


def older(row: Row) -> bool:
    """Whether no part of a row is of a later version than ours."""
    return all(made <= now for _, made, now in _versions(row))


def _versions(row: Row) -> Iterator[tuple[str, int, int]]:
    """What a row was made with and what there is now, by name, as far as the row says."""
    made = row.get("provenance") or {}
    metric, codecs = (made.get("metrics") or {}).get(row["kind"]), made.get("codecs")
    if metric is not None:
        yield "metric", metric, known(row["kind"]).version
    if codecs is not None:
        yield "codec", codecs, CODEC_VERSION
    yield from method_versions(row)


def problems(folder: Path) -> Iterator[str]:
    """A line for everything in the folder that a sweep would not have left there."""
    known = {entry.path: entry for entry in stored(folder)}
    seen: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.glob("*.json")):
        found = list(_of_row(known[path])) if path in known else [str(_read(path))]
        if path in known:
            row = known[path].row
            first = seen.setdefault((row["kind"], row["key"]), path)
            found += [f"the same cell as {first.name}"] if first != path else []
        yield from (f"{path.name}: {words}" for words in found)
    for path in sorted(folder.glob("*.npz")):
        if path.with_suffix(".json") not in known:
            yield f"{path.name}: arrays without a row"


def _of_row(entry: Stored) -> Iterator[str]:
    row, made = entry.row, entry.row.get("provenance") or {}
    if entry.path.name != row_name(row):
        yield f"its row would be {row_name(row)}"
    keyed = made.get("keyed")
    if keyed is not None and _key(keyed) != row["key"]:
        yield "its key is not the hash of what it was made from"
    if keyed is not None and not _agrees(row["requested"], keyed):
        yield "what was asked is not what its key was made from"
    if row["status"] != "ok" and row.get(row["kind"]) is not None:
        yield f"numbers of a cell that {row['status']}"
    if row["status"] != "ok" and not row.get("reason"):
        yield f"{row['status']} without a reason"
    if row["status"] == "ok" and known(row["kind"]).arrays and keyed is not None:
        yield from _of_sidecar(entry)


def _key(keyed: Any) -> str:
    return hashlib.sha256(json.dumps(keyed, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _agrees(requested: Row, keyed: Any) -> bool:
    try:
        return all(requested.get(name) == value for name, value in keyed[1].items())
    except (TypeError, IndexError, AttributeError, KeyError):
        return False


def _of_sidecar(entry: Stored) -> Iterator[str]:
    """The per-token arrays: there, whole, and as many tokens as were scored."""
    import numpy as np

    if not entry.sidecar.exists():
        yield f"{entry.sidecar.name} is missing"
        return
    try:
        with np.load(entry.sidecar) as arrays:
            lengths = {len(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        yield f"{entry.sidecar.name} cannot be read: {error}"
        return
    kind = known(entry.row["kind"])
    scored = entry.row[kind.name].get(kind.arrays)
    if lengths != {scored}:
        yield f"{entry.sidecar.name} holds {sorted(lengths)} values, {scored} tokens were scored"
