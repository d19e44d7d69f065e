"""Files that others write and read meanwhile: when one was written, and writing so that a reader sees all of
it or what was there before."""

from __future__ import annotations

import os
from pathlib import Path


def written_ns(path: Path) -> int | None:
    """When a file was last written; None for one that is gone by now, or leads nowhere."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Written under a temporary name and renamed: a kill or a full disk leaves no half of a file."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
