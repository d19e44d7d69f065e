"""Codes below 8 bits that are not tiled: plane after plane, in whole bytes, the first in the lowest bits."""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv.store.tiles import PLANES, join_planes, split_planes


def packed_nbytes(count: int, bits: int) -> int:
    """Bytes of so many codes."""
    return sum(-(-count * plane // 8) for plane in PLANES[bits])


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes `[..., count]` to bytes `[..., packed_nbytes]`."""
    planes = zip(PLANES[bits], split_planes(codes, bits), strict=True)
    return torch.cat([_pack(part, plane) for plane, part in planes], -1)


def unpack_bits(data: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack_bits`."""
    parts = data.split([-(-count * plane // 8) for plane in PLANES[bits]], -1)
    return join_planes([_unpack(part, plane, count) for plane, part in zip(PLANES[bits], parts)], bits)


def _pack(codes: Tensor, bits: int) -> Tensor:
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_byte)).unflatten(-1, (-1, per_byte))
    packed = padded[..., 0]
    for i in range(1, per_byte):
        packed = packed | (padded[..., i] << (bits * i))
    return packed


def _unpack(data: Tensor, bits: int, count: int) -> Tensor:
    codes = torch.stack([(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], -1)
    return codes.flatten(-2)[..., :count]
