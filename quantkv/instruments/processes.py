"""A process that ends when the one that started it ends, in whatever way, and on every system.

The parent holds the writing end of a pipe whose reading end is the child's standard input, and writes
nothing: when the parent is gone the system closes its end, and the child reads the end of the file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

STDIN = 0


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """The standard input for a child: open as long as the body runs and this process lives."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def end_with_parent(folder: Path | None = None) -> None:
    """In the child: once standard input ends, stop, and remove ``folder`` with its files before that."""

    def watch() -> None:
        while os.read(STDIN, 1):  # not sys.stdin, whose lock would be held when the interpreter shuts down
            pass
        if folder is not None:
            _remove(folder)
        os._exit(1)

    threading.Thread(target=watch, name="quantkv-orphan", daemon=True).start()


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
