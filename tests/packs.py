"""Pages made by hand for kernel tests: the layout rule of the store written out in numpy, apart from the code
under test, and formats that no codec has yet (codebooks, one-bit planes, block floats)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

LANES = 16
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
FLOATS = {"float32": np.float32, "float16": np.float16}


@dataclass(frozen=True)
class Pack:
    """A page format: how codes read as numbers, and which block of tokens × channels shares a scale."""

    keys: bool
    heads: int
    head_dim: int
    page_tokens: int
    code: str = "affine"
    bits: int = 8
    value: str = "float16"
    share_tokens: int = 1
    share_channels: int = 0
    has_zero: bool = True
    has_scale: bool = True
    all_heads: bool = False
    meta: str = "float16"
    table: tuple[float, ...] = field(default=())

    @property
    def plane_bits(self) -> tuple[int, ...]:
        return (8 * np.dtype(FLOATS[self.value]).itemsize,) if self.code == "raw" else PLANES[self.bits]

    @property
    def panels(self) -> list[tuple[int, int, int]]:
        """(rows, vectors, first vector) of each panel of a head."""
        if self.keys:
            return [(self.head_dim, 4, t // LANES) for t in range(0, self.page_tokens, 64)]
        left, at, out = -(-self.head_dim // LANES), 0, []
        for width in (4, 2, 1):
            while left >= width:
                out.append((self.page_tokens, width, at))
                left, at = left - width, at + width
        return out

    def head_bytes(self, bits: int) -> int:
        return sum(self._panel_bytes(rows * vectors, bits) for rows, vectors, _ in self.panels)

    @staticmethod
    def _panel_bytes(vectors: int, bits: int) -> int:
        return vectors * LANES * bits // 8 if bits >= 8 else -(-vectors // (32 // bits)) * 64

    def offsets(self) -> tuple[list[int], int, int, int]:
        """(offset of each plane, of the scales, of the zeros, bytes of a record), all multiples of 64."""
        at, planes = 0, []
        for bits in self.plane_bits:
            planes.append(at)
            at += -(-self.heads * self.head_bytes(bits) // 64) * 64
        size = -(-self.meta_count * np.dtype(FLOATS[self.meta]).itemsize // 64) * 64
        scale, zero = at, at + size * self.has_scale
        return planes, scale, zero, zero + size * (self.has_scale and self.has_zero)

    @property
    def channels(self) -> int:
        return self.share_channels or self.head_dim

    @property
    def meta_shape(self) -> tuple[int, int, int]:
        heads = 1 if self.all_heads else self.heads
        return heads, self.page_tokens // self.share_tokens, self.head_dim // self.channels

    @property
    def meta_count(self) -> int:
        return int(np.prod(self.meta_shape))

    @property
    def centre(self) -> float:
        return 0.0 if self.has_zero or self.code != "affine" else float(2 ** (self.bits - 1))

    def native(self, module: Any) -> Any:
        planes, scale, zero, _ = self.offsets()
        codes = module.Format(
            lanes_are_tokens=self.keys, heads=self.heads, head_dim=self.head_dim,
            page_tokens=self.page_tokens,
            code=self.code, value=self.value if self.code == "raw" else "float32",
            planes=[(b, o, self.head_bytes(b)) for b, o in zip(self.plane_bits, planes)],
            has_scale=self.has_scale, has_zero=self.has_zero and self.has_scale, meta=self.meta,
            centre=self.centre,
            scale_at=scale, zero_at=zero, share_tokens=self.share_tokens, share_channels=self.channels,
            all_heads=self.all_heads, table=list(self.table),
        )  # fmt: skip
        return module.Method([codes])

    def page(self, elements: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """One record from elements `[H, P, D]` (codes, or floats) and metadata of `meta_shape`."""
        planes, scale_at, zero_at, size = self.offsets()
        record = np.zeros(size, np.uint8)
        shift = 0
        for bits, offset in zip(self.plane_bits, planes):
            part = elements if bits >= 8 else (elements >> shift) & ((1 << bits) - 1)
            raw = np.concatenate([self._head(part[h], bits) for h in range(self.heads)])
            record[offset : offset + raw.size] = raw
            shift += bits
        for at, numbers in ((scale_at, scale), (zero_at, zero))[
            : self.has_scale + (self.has_scale and self.has_zero)
        ]:
            raw = numbers.astype(FLOATS[self.meta]).reshape(-1).view(np.uint8)
            record[at : at + raw.size] = raw
        return record

    def _head(self, x: np.ndarray, bits: int) -> np.ndarray:
        """`[P, D]` elements of a head to the bytes of its panels."""
        lanes = (x if self.keys else x.T).astype(x.dtype)  # [lane elements, rows]
        wide = np.zeros((-(-lanes.shape[0] // LANES) * LANES, lanes.shape[1]), x.dtype)
        wide[: lanes.shape[0]] = lanes
        return np.concatenate([self._panel(wide, panel, bits) for panel in self.panels])

    @staticmethod
    def _panel(wide: np.ndarray, panel: tuple[int, int, int], bits: int) -> np.ndarray:
        rows, vectors, first = panel
        part = wide[first * LANES : (first + vectors) * LANES].reshape(vectors, LANES, rows)
        sequence = part.transpose(2, 0, 1).reshape(rows * vectors, LANES)  # vector number row * NV + v
        if bits >= 8:
            return np.ascontiguousarray(sequence).view(np.uint8).reshape(-1)
        per = 32 // bits
        words = np.zeros((-(-len(sequence) // per), LANES), np.uint32)
        for s, lanes in enumerate(sequence):
            words[s // per] |= lanes.astype(np.uint32) << np.uint32(bits * (s % per))
        return words.view(np.uint8).reshape(-1)

    def decode(self, elements: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """What those numbers stand for, `[H, P, D]` in float64."""
        if self.code == "raw":
            return elements.astype(np.float64)
        x = self._numbers(elements)
        if not self.has_scale:
            return x
        spread = [
            np.broadcast_to(m.astype(FLOATS[self.meta]).astype(np.float64), (self.meta_shape))
            .repeat(self.share_tokens, 1)
            .repeat(self.channels, 2)
            for m in (scale, zero)
        ]
        return spread[0] * (x - self.centre) + (spread[1] if self.has_zero else 0.0)

    def _numbers(self, codes: np.ndarray) -> np.ndarray:
        import torch

        if self.code == "table":
            return np.asarray(self.table, np.float32).astype(np.float64)[codes]
        if self.code in ("e4m3", "e5m2"):
            dtype = torch.float8_e4m3fn if self.code == "e4m3" else torch.float8_e5m2
            return torch.from_numpy(codes.astype(np.uint8)).view(dtype).double().numpy()
        return codes.astype(np.float64)


@dataclass(frozen=True)
class Pages:
    """Records of one row in memory, and what they decode to `[H, tokens, D]`."""

    buffer: Any
    addresses: list[int]
    decoded: np.ndarray


def random_pages(pack: Pack, rng: np.random.Generator, count: int) -> Pages:
    """`count` pages of random codes, with scales that bring the numbers to about one."""
    parts = [_random_page(pack, rng) for _ in range(count)]
    buffer = np.concatenate([record for record, _ in parts])
    size = len(buffer) // count
    addresses = [buffer.ctypes.data + i * size for i in range(count)]
    return Pages(buffer, addresses, np.concatenate([decoded for _, decoded in parts], 1))


def _random_page(pack: Pack, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    shape = (pack.heads, pack.page_tokens, pack.head_dim)
    if pack.code == "raw":
        elements = rng.standard_normal(shape).astype(FLOATS[pack.value])
    else:
        elements = rng.integers(0, 2**pack.bits, shape).astype(np.uint8)
    if pack.code in ("e4m3", "e5m2"):  # neither NaN nor infinite
        exponent = 0x78 if pack.code == "e4m3" else 0x7C
        elements[elements & exponent == exponent] = 0
    largest = {"e4m3": 240.0, "e5m2": 49152.0, "table": 1.0}.get(pack.code, (2**pack.bits - 1) / 2)
    scale, zero = rng.uniform(0.5, 1, pack.meta_shape) / largest, rng.uniform(-1, 0, pack.meta_shape)
    return pack.page(elements, scale, zero), pack.decode(elements, scale, zero)
