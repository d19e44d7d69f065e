"""Copies of pages whose last byte is the last one that may be read."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedRecord:
    """A record at the end of a mapping, with an unreadable page behind it."""

    def __init__(self, record: np.ndarray) -> None:
        size = -(-len(record) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.map = mmap.mmap(-1, size + mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.map[size - len(record) : size] = record.tobytes()
        self._guard = base + size
        self._protect(0)
        self.address = base + size - len(record)

    def _protect(self, how: int) -> None:
        if _LIBC.mprotect(self._guard, mmap.PAGESIZE, how):
            raise OSError(ctypes.get_errno(), "mprotect")

    def close(self) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)


class GuardedPages:
    """Moves every page of a case's side behind such a wall."""

    def __init__(self, side: dict[str, Any], size: int) -> None:
        self.records = [
            [self._copy(pages, i, size) for i in range(len(pages.addresses))] for pages in side["pages"]
        ]
        side["kernel"].set([[record.address for record in row] for row in self.records])

    @staticmethod
    def _copy(pages: Any, index: int, size: int) -> GuardedRecord:
        return GuardedRecord(pages.buffer[index * size : (index + 1) * size])

    def close(self) -> None:
        for row in self.records:
            for record in row:
                record.close()
