"""Where a row's tokens stand: a token's position is its slot, less the row's padding, plus the position of
the row's first real token.

So a cache stores one number per row instead of a position per token. It is found in the position ids that an
update is told, and later calls are seen to count on: sequences packed into one row, trees, padding between
tokens and several axes (M-RoPE) do not, and methods that need positions refuse them. Where a model tells
none (GPT-NeoX, Falcon, StableLM, Persimmon, Llama 4, Ministral 3, Moshi), rows are taken to begin at 0. Were
that wrong by a constant, each pair of channels would be stored turned by an angle that is the same for all
tokens, and come back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from quantkv.errors import UnsupportedError

SHOWN = 4
"""So many positions stand in a message."""


def row_offsets(
    told: Tensor | None, pads: Sequence[int], start: int, length: int, known: Sequence[int]
) -> list[int]:
    """The position of each row's first real token, after a call that adds slots `[start, start + length)`.

    `told` are the call's position ids `[1 or rows, length]`, `pads` the rows' leading padding, `known` what
    this function gave for the call before; of rows that held padding alone before `start` it is not asked.
    Rows that hold padding alone still, and those that are told nothing, begin at 0. UnsupportedError where a
    row's real tokens do not count on by ones.
    """
    held = [offset if start > pad else None for offset, pad in zip(known, pads, strict=True)]
    if told is None:
        return [offset or 0 for offset in held]
    table = _table(told, len(pads), length)
    return [
        _offset(row, table[row if len(table) > 1 else 0], start - pad, held[row])
        for row, pad in enumerate(pads)
    ]


def pass_offsets(told: Tensor | None, begins: Sequence[int], ends: Sequence[int], start: int) -> list[int]:
    """The same in one pass over slots from `start` on, in which real tokens of rows begin and end so."""
    if told is None:
        return [0] * len(begins)
    found = []
    for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        own = told[row if len(told) > 1 else 0]
        if told.dim() != 2 or own.shape[0] < end - start:
            return row_offsets(told, begins, start, max(ends) - start, begins)
        first = max(begin, start)
        held = [int(own[first - start]) - (first - begin)] if end > first else [0]
        found += row_offsets(own[None, : end - start], [begin], start, end - start, held)
    return found


def _table(told: Tensor, rows: int, length: int) -> list[list[int]]:
    if tuple(told.shape) not in ((1, length), (rows, length)):
        raise UnsupportedError(
            f"unrope needs one position for each token, [1 or {rows}, {length}], and this call tells "
            f"{list(told.shape)}: positions along several axes (M-RoPE) need a format without unrope"
        )
    return told.tolist()


def _offset(row: int, told: list[int], real_before: int, offset: int | None) -> int:
    """Of one row with `real_before` real slots before the call, less than none where padding goes on."""
    padding = max(0, -real_before)
    real = told[padding:]
    if not real:
        return 0
    if offset is None:
        offset = real[0]
    if offset < 0:
        raise UnsupportedError(f"unrope needs positions from 0 on: row {row} begins at {offset}")
    expected = range(offset + max(0, real_before), offset + max(0, real_before) + len(real))
    for at, (is_told, follows) in enumerate(zip(real, expected, strict=True)):
        if is_told != follows:
            raise UnsupportedError(
                f"unrope needs positions that count on from a row's first real token: row {row} is told "
                f"{_shown(real[at:])} where {_shown(expected[at:])} would follow; packed sequences, trees "
                "and padding between tokens need a format without unrope"
            )
    return offset


def _shown(positions: Sequence[int]) -> str:
    numbers = ", ".join(str(position) for position in positions[:SHOWN])
    return numbers + (", …" if len(positions) > SHOWN else "")
