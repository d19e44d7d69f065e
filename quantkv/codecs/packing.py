"""Bit packing as small pure functions: codes of 1 to 8 bits to bytes and back.

A width that does not divide 8 is stored as planes (3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2): the first plane holds
the low bits. Within a byte the code with the lowest index takes the lowest bits. The last axis is packed.
"""

from __future__ import annotations

import torch
from torch import Tensor

PLANES: dict[int, tuple[int, ...]] = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}


def packed_width(width: int, bits: int) -> int:
    """Bytes that `width` codes of `bits` bits take in one plane."""
    return -(-width * bits // 8)


def pack_plane(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes below 2**bits, `[..., W]`, to bytes `[..., ceil(W * bits / 8)]`; bits is 1, 2, 4 or 8."""
    if bits == 8:
        return codes
    per_byte = 8 // bits
    short = -codes.shape[-1] % per_byte
    if short:
        codes = torch.nn.functional.pad(codes, (0, short))
    lanes = codes.unflatten(-1, (-1, per_byte))
    packed = lanes[..., 0]
    for lane in range(1, per_byte):
        packed = packed | (lanes[..., lane] << (bits * lane))
    return packed


def unpack_plane(packed: Tensor, bits: int, width: int) -> Tensor:
    """The inverse of `pack_plane`: the first `width` codes of each row."""
    if bits == 8:
        return packed
    mask = (1 << bits) - 1
    lanes = [(packed >> shift) & mask for shift in range(0, 8, bits)]
    return torch.stack(lanes, -1).flatten(-2)[..., :width]


def pack(codes: Tensor, bits: int) -> list[Tensor]:
    """One packed tensor per plane of `bits`."""
    planes = []
    for plane_bits in PLANES[bits]:
        planes.append(pack_plane(codes & ((1 << plane_bits) - 1), plane_bits))
        codes = codes >> plane_bits
    return planes


def unpack(planes: list[Tensor], bits: int, width: int) -> Tensor:
    """The inverse of `pack`: uint8 codes `[..., width]`."""
    shift, codes = 0, None
    for packed, plane_bits in zip(planes, PLANES[bits], strict=True):
        part = unpack_plane(packed, plane_bits, width)
        codes = part if codes is None else codes | (part << shift)
        shift += plane_bits
    assert codes is not None
    return codes
