"""Writing a file so that a reader sees all of it or what was there before."""

from __future__ import annotations

import os
from pathlib import Path


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
