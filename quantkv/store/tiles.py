"""How the elements of a page lie in bytes: tiles that a SIMD kernel reads in whole vectors of 16 lanes.

A panel is R rows of NV vectors, NV 4, 2 or 1; its vector number `r · NV + v` is row r's v-th vector.

- lanes are tokens (keys): a panel is 64 tokens of one head, row r is channel r, token t is lane t % 16 of
  vector t // 16. A head has one panel after the other.
- lanes are channels (values): the channels of a head, 16 to a vector, are cut into panels of 4, then 2, then
  1 vectors, row r is token r of the page. Lanes beyond head_dim are 0.

Codes below 8 bits: 32 / bits vectors share a block of 16 little-endian 32-bit words, one per lane, the first
vector in the lowest bits; the end of a panel's last block is 0. Wider elements: vectors one after the other.
A width that does not divide 8 is stored as planes (3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2, 7 = 4 + 2 + 1), low bits
first.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Lanes = Literal["tokens", "channels"]
"""What lies side by side in a vector: a score sums over channels, an output over tokens."""
KEY_LANES: Lanes = "tokens"
VALUE_LANES: Lanes = "channels"
LANES = 16
PANEL_TOKENS = 64
PLANES: dict[int, tuple[int, ...]] = {
    1: (1,),
    2: (2,),
    3: (2, 1),
    4: (4,),
    5: (4, 1),
    6: (4, 2),
    7: (4, 2, 1),
    8: (8,),
}

_BLOCK_BYTES = 64
_WORD_BYTES = 4


def split_planes(codes: Tensor, bits: int) -> list[Tensor]:
    """uint8 codes of any shape to the codes of each plane of `bits`; what lies above `bits` is dropped."""
    parts = []
    for plane in PLANES[bits]:
        parts.append(codes & ((1 << plane) - 1))
        codes = codes >> plane
    return parts


def join_planes(parts: list[Tensor], bits: int) -> Tensor:
    """The inverse of `split_planes`."""
    codes, shift = parts[0], PLANES[bits][0]
    for part, plane in zip(parts[1:], PLANES[bits][1:], strict=True):
        codes = codes | (part << shift)
        shift += plane
    return codes


def channel_panels(head_dim: int) -> list[int]:
    """Vectors per token of each panel where lanes are channels."""
    vectors = -(-head_dim // LANES)
    return [4] * (vectors // 4) + [2] * (vectors % 4 // 2) + [1] * (vectors % 2)


def panel_sets(lanes: Lanes, tokens: int, head_dim: int) -> list[tuple[int, int]]:
    """(panels, vectors in each) for every set of equal panels of one head; `tokens` is a multiple of 64."""
    if lanes == "tokens":
        return [(tokens // PANEL_TOKENS, head_dim * PANEL_TOKENS // LANES)]
    return [(1, tokens * vectors) for vectors in channel_panels(head_dim)]


def panel_bytes(bits: int, vectors: int) -> int:
    """Bytes of a panel of `vectors` vectors in one plane of `bits`."""
    if bits >= 8:
        return vectors * LANES * bits // 8
    return -(-vectors * bits // 32) * _BLOCK_BYTES


def head_bytes(bits: int, lanes: Lanes, tokens: int, head_dim: int) -> int:
    """Bytes of one head of one plane in a page of `tokens` tokens."""
    return sum(n * panel_bytes(bits, vectors) for n, vectors in panel_sets(lanes, tokens, head_dim))


def tile(x: Tensor, bits: int, lanes: Lanes) -> Tensor:
    """One plane of a page, `[..., H, P, D]`, to bytes `[..., H, head_bytes]`.

    Elements are uint8 codes below 2**bits, or numbers of `bits` bits where that is 8 or more.
    """
    return torch.cat([_pack(panels, bits).flatten(-2) for panels in _cut(x, lanes)], -1)


def untile(
    data: Tensor, bits: int, lanes: Lanes, tokens: int, head_dim: int, dtype: torch.dtype = torch.uint8
) -> Tensor:
    """The inverse of `tile`: bytes `[..., H, head_bytes]` to elements `[..., H, tokens, head_dim]`.

    May share memory with `data`.
    """
    sets = panel_sets(lanes, tokens, head_dim)
    parts = data.split([n * panel_bytes(bits, vectors) for n, vectors in sets], -1)
    panels = [
        _unpack(part.unflatten(-1, (n, -1)), bits, vectors, dtype)
        for part, (n, vectors) in zip(parts, sets, strict=True)
    ]
    return _join_tokens(panels[0], head_dim) if lanes == "tokens" else _join_channels(panels, head_dim)


def _cut(x: Tensor, lanes: Lanes) -> list[Tensor]:
    """`[..., P, D]` to one `[..., panels, vectors, 16]` tensor per set of equal panels."""
    head_dim = x.shape[-1]
    if lanes == "tokens":
        by_vector = x.unflatten(-2, (-1, PANEL_TOKENS // LANES, LANES))
        return [by_vector.movedim(-1, -3).flatten(-3, -2)]
    sizes = channel_panels(head_dim)
    padded = torch.nn.functional.pad(x, (0, sum(sizes) * LANES - head_dim))
    parts = padded.unflatten(-1, (-1, LANES)).split(sizes, -2)
    return [part.flatten(-3, -2).unsqueeze(-3) for part in parts]


def _join_tokens(panels: Tensor, head_dim: int) -> Tensor:
    """`[..., panels, D · 4, 16]` to `[..., P, D]`."""
    by_channel = panels.unflatten(-2, (head_dim, PANEL_TOKENS // LANES))
    return by_channel.movedim(-3, -1).flatten(-4, -2)


def _join_channels(panels: list[Tensor], head_dim: int) -> Tensor:
    """One `[..., 1, P · NV, 16]` per panel to `[..., P, D]`."""
    sizes = channel_panels(head_dim)
    parts = [p.squeeze(-3).unflatten(-2, (-1, n)) for p, n in zip(panels, sizes, strict=True)]
    vectors = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
    return vectors.flatten(-2)[..., :head_dim]


def _pack(vectors: Tensor, bits: int) -> Tensor:
    """`[..., V, 16]` elements to `[..., panel_bytes]`.

    Codes are put together byte by byte, byte k of a word from the vectors whose bits lie there, so that the
    result is the same on every device and byte order.
    """
    if bits >= 8:
        return vectors.contiguous().view(torch.uint8).flatten(-2)
    per_byte = 8 // bits
    short = -vectors.shape[-2] % (32 // bits)
    padded = torch.nn.functional.pad(vectors, (0, 0, 0, short))
    codes = padded.unflatten(-2, (-1, _WORD_BYTES, per_byte))
    packed = codes[..., 0, :]
    for i in range(1, per_byte):
        packed = packed | (codes[..., i, :] << (bits * i))
    return packed.transpose(-1, -2).flatten(-3)


def _unpack(data: Tensor, bits: int, vectors: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `_pack`: `[..., panel_bytes]` to `[..., V, 16]`."""
    if bits >= 8:
        return data.view(dtype).unflatten(-1, (vectors, LANES))
    packed = data.unflatten(-1, (-1, LANES, _WORD_BYTES)).transpose(-1, -2)
    mask = (1 << bits) - 1
    codes = torch.stack([(packed >> shift) & mask for shift in range(0, 8, bits)], -2)
    return codes.flatten(-4, -2)[..., :vectors, :]
