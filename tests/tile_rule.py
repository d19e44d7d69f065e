"""The rule of how tiles lie in bytes, as slow loops over single elements."""

from __future__ import annotations

import struct

import numpy as np

from quantkv.store import Lanes


def panels_by_rule(x: np.ndarray, lanes: Lanes) -> list[list[np.ndarray]]:
    """The vectors of each panel of one head, `[P, D]`."""
    tokens, dim = x.shape
    if lanes == "tokens":
        return [
            [x[first + 16 * v : first + 16 * v + 16, channel] for channel in range(dim) for v in range(4)]
            for first in range(0, tokens, 64)
        ]
    wide = np.zeros((tokens, -(-dim // 16) * 16), dtype=x.dtype)
    wide[:, :dim] = x
    panels, first = [], 0
    while first < wide.shape[1]:
        left = (wide.shape[1] - first) // 16
        count = 4 if left >= 4 else 2 if left >= 2 else 1
        starts = [first + 16 * v for v in range(count)]
        panels.append([wide[token, c : c + 16] for token in range(tokens) for c in starts])
        first += 16 * count
    return panels


def bytes_by_rule(vectors: list[np.ndarray], bits: int) -> bytes:
    """The bytes of one panel in one plane."""
    if bits >= 8:
        return b"".join(vector.tobytes() for vector in vectors)
    per_block = 32 // bits
    words = [0] * (16 * -(-len(vectors) // per_block))
    for s, vector in enumerate(vectors):
        for lane, code in enumerate(vector.tolist()):
            words[16 * (s // per_block) + lane] |= code << (bits * (s % per_block))
    return struct.pack(f"<{len(words)}I", *words)


def head_by_rule(x: np.ndarray, bits: int, lanes: Lanes) -> list[int]:
    """The bytes of one plane of one head, `[P, D]` codes or bit patterns of floats."""
    return list(b"".join(bytes_by_rule(vectors, bits) for vectors in panels_by_rule(x, lanes)))
