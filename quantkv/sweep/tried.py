"""Which cells of a folder need no measuring, while others write rows there too."""

from __future__ import annotations

from pathlib import Path

from quantkv.rows.files import read_rows


class Tried:
    """The rows in a folder when a sweep began: what others try meanwhile is not tried again."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._before = {path.name: _changed(path) for path in out.glob("*.json")}

    def status(self, kind: str, key: str) -> str | None:
        """The status of a cell that needs no measuring: finished at any time, or tried since the start."""
        for path in self.out.glob(f"{kind}-*-{key[:12]}.json"):
            for row in read_rows(path, warn=lambda _: None):
                if row["key"] == key and (row["status"] == "ok" or self._is_new(path)):
                    return str(row["status"])
        return None

    def _is_new(self, path: Path) -> bool:
        return self._before.get(path.name) != _changed(path)


def _changed(path: Path) -> int | None:
    """When a file was last written; None for one that is gone by now, or leads nowhere."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
