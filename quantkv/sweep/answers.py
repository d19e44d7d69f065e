"""Which rows answer a cell.

Without its model, those do that a sweep would find finished, if model, content of the text and machine are
still what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quantkv.files import written_ns
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row, read_rows
from quantkv.rows.kinds import known
from quantkv.rows.upkeep import outdated


def unopened(asked: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a cell whose model could not be loaded: names, as nothing else tells its cells apart."""
    named = {name: asked.get(name) for name in ("revision", "seed")}
    return {"model": f"not loaded: {asked.get('model')}", "text": protocol.get("text"), **named}


def place(kind: str, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """What a row and a cell must share to be worth a closer look."""
    return kind, *(str(asked.get(name)) for name in ("model", "revision", "spec", "context", "batch"))


def answers(row: Row, cell: Cell) -> bool:
    """Whether the row's key is the one that the cell would have with the facts of the row. So settings are
    compared as they were asked for: a row's protocol holds them as they turned out."""
    if place(row["kind"], row["requested"]) != place(cell.kind, cell.requested()):
        return False
    return cell.key(_facts(row)) == row["key"] and _same_sample(row, cell) and outdated(row) is None


class Answers:
    """Rows by the cells that they answer."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_place: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            self._by_place.setdefault(place(row["kind"], row["requested"]), []).append(row)

    def to(self, cell: Cell) -> list[Row]:
        near = self._by_place.get(place(cell.kind, cell.requested()), [])
        return [row for row in near if answers(row, cell)]


def _facts(row: Row) -> Mapping[str, Any]:
    keyed = (row.get("provenance") or {}).get("keyed")
    if isinstance(keyed, list) and len(keyed) == 4 and isinstance(keyed[3], Mapping):
        return keyed[3]
    return unopened(row["requested"], row.get("protocol") or {})


def _same_sample(row: Row, cell: Cell) -> bool:
    """What the facts stand for in a key: the text by its name, the seed where it picks, threads if asked."""
    protocol = row.get("protocol") or {}
    same = protocol.get("text") == cell.protocol.get("text")
    if not known(cell.kind).of_machine and cell.protocol.get("whole") is None:
        same = same and row["requested"].get("seed") == cell.seed
    threads = cell.protocol.get("threads")
    return same and threads in (None, protocol.get("threads"))


class Tried:
    """The rows in a folder when a sweep began: what others try meanwhile is not tried again."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._before = {path.name: written_ns(path) for path in out.glob("*.json")}

    def status(self, kind: str, key: str) -> str | None:
        """The status of a cell that needs no measuring: finished at any time, or tried since the start."""
        for path in self.out.glob(f"{kind}-*-{key[:12]}.json"):
            for row in read_rows(path, warn=lambda _: None):
                if row["key"] == key and (row["status"] == "ok" or self._is_new(path)):
                    return str(row["status"])
        return None

    def _is_new(self, path: Path) -> bool:
        return self._before.get(path.name) != written_ns(path)
