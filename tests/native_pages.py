"""Pages for tests of the native encoder and decoder: formats from layouts, and records by address."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantkv import TensorSpec, parse_spec
from quantkv.codecs.place import Place, Which
from quantkv.engines.choosing import REFERENCE
from quantkv.engines.native import FLOATS
from quantkv.engines.program import page_format
from quantkv.store import page_layout
from quantkv.store.pages import PageStore


class NativePages:
    """Rows of pages that the native code fills; `store` is the same in PyTorch."""

    def __init__(
        self, native: Any, tensor: TensorSpec, which: Which, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        rows, heads, dim = shape
        self.stored = tensor.at(Place(which, heads, dim, dtype))
        self.native, self.codec, self.rows = native, self.stored.codec, rows
        self.layout = page_layout(self.stored)
        self.format = page_format(self.stored, self.layout)
        self.store = PageStore(self.stored, REFERENCE, rows, torch.device("cpu"))
        self.clear()

    def clear(self) -> None:
        self.records: list[list[Tensor]] = [[] for _ in range(self.rows)]
        self.used = 0

    def addresses(self) -> list[list[int]]:
        return [[record.data_ptr() for record in row] for row in self.records]

    def reserve(self, tokens: int, fill: int = 0) -> None:
        pages = -(-tokens // self.layout.page_tokens)
        for row in self.records:
            while len(row) < pages:
                row.append(torch.full((self.layout.record_bytes,), fill, dtype=torch.uint8))

    def append(self, x: Tensor, threads: int = 1, isa: str | None = None, fill: int = 0) -> None:
        self.reserve(self.used + x.shape[2], fill)
        arguments = (x.data_ptr(), FLOATS[x.dtype], tuple(x.shape), x.stride()[:3])
        self.native.encode(self.format, self.addresses(), self.used, *arguments, threads, isa)
        self.used += x.shape[2]

    def read(self, start: int, stop: int, threads: int = 1, isa: str | None = None) -> Tensor:
        shape = (self.rows, self.layout.num_heads, stop - start, self.layout.head_dim)
        out = torch.full(shape, -123.0)
        arguments = (out.data_ptr(), out.stride()[:3], threads, isa)
        self.native.decode(self.format, self.addresses(), start, stop, *arguments)
        return out

    def reference_records(self) -> list[list[Tensor]]:
        return [[self.store.pool.record(n) for n in table] for table in self.store.tables]


def tensors_of(texts: list[str]) -> dict[str, tuple[TensorSpec, str]]:
    """Every different tensor of some specs that kernels encode by a rule of their own, by a name that tells
    which. Maps come before them and are PyTorch's."""
    found = {}
    for text in texts:
        spec = parse_spec(text)
        for which in ("key", "value"):
            tensor: TensorSpec = getattr(spec, which)
            if tensor.maps or tensor.build().rule is None:
                continue
            chunk = f"@{tensor.flush}" if str(tensor.sharing).startswith("chunk") else ""
            found[f"{which} {tensor}{chunk}"] = (tensor, which)
    return found
