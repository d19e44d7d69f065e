"""Stores for tests: making them, feeding them, and reading what they hold."""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv import CacheSpec, TensorSpec
from quantkv.codecs import Place, Stored, compute_dtype
from quantkv.codecs.place import Which
from quantkv.engines import Engine, engine_for
from quantkv.store import TensorStore
from quantkv.testing import encoded, tokens_of

HEADS, DIM = 2, 32
CPU = torch.device("cpu")


def new_store(
    spec: CacheSpec,
    which: Which = "key",
    rows: int = 1,
    pads: list[int] | None = None,
    heads: int = HEADS,
    dim: int = DIM,
    engine: Engine | None = None,
) -> TensorStore:
    tensor: TensorSpec = getattr(spec, which)
    window = tensor.window(spec.sinks, spec.reserve, spec.quantize_after)
    stored = tensor.at(Place(which, heads, dim))
    return TensorStore(stored, window, rows, CPU, engine or engine_for(stored, CPU)[0], pads)


def at_place(
    tensor: TensorSpec,
    which: Which = "key",
    heads: int = HEADS,
    dim: int = DIM,
    dtype: torch.dtype = torch.float32,
) -> Stored:
    """The method of a spec where tests put it."""
    return tensor.at(Place(which, heads, dim, dtype))


def stored_for(tensor: TensorSpec, x: Tensor, which: Which = "key") -> Stored:
    """The method of a spec at a place of such tensors `[N, H, T, D]`."""
    return at_place(tensor, which, x.shape[1], x.shape[3], x.dtype)


def encode(tensor: TensorSpec, x: Tensor) -> dict[str, Tensor]:
    """The fields of `x`, codes unpacked."""
    return encoded(stored_for(tensor, x), x)


def decode(
    tensor: TensorSpec, fields: dict[str, Tensor], x: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """What fields of `x` stand for."""
    stored = stored_for(tensor, x)
    return stored.decode(fields, tokens_of(stored, x), dtype)


def round_trip(tensor: TensorSpec, x: Tensor) -> Tensor:
    """`x` encoded and decoded again."""
    return decode(tensor, encode(tensor, x), x, compute_dtype(x.dtype))


def feed(store: TensorStore, x: Tensor, sizes: list[int]) -> None:
    assert sum(sizes) == x.shape[2]
    for part in x.split(sizes, 2):
        store.append(part)


def everything(store: TensorStore) -> Tensor:
    return store.view().read(0, store.length)


def used_fields(store: TensorStore, row: int = 0) -> dict[str, Tensor]:
    """The stored fields of a row's packed tokens, page after page, without the open page's end."""
    layout, used = store.pages.layout, store.pages.used[row]
    records = [store.pages.pool.record(number) for number in store.pages.tables[row]]
    pages = [layout.read(record[None]) for record in records]
    joined = {f: torch.cat([page[f.name][0] for page in pages], 1) for f in layout.fields}
    return {f.name: x[:, : used // f.tokens] for f, x in joined.items()}


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
