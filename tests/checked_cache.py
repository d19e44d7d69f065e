"""A cache that checks its own promises at every update, whatever generation does with it in between."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from runs import live_bytes
from torch import Tensor

from quantkv import QuantizedCache
from quantkv.store import TensorStore
from quantkv.store.pool import GONE


class Record:
    """What one store was given, and how it read at its last update."""

    def __init__(self) -> None:
        self.given, self.seen, self.ends = torch.empty(0), torch.empty(0), [0]

    def check(self, store: TensorStore, x: Tensor, recent: int) -> None:
        length, start = store.length, store.length - x.shape[2]
        self.given = torch.cat([self.given[:, :, :start], x], 2) if start else x.clone()
        low = max(0, start - store.span) if store.span is not None else 0
        now = torch.zeros_like(self.given)
        now[:, :, low:] = store.view().read(low, length)
        if not start:
            self.seen, self.ends = now, [0] * store.rows
        for row, pad in enumerate(store.pads):
            self._check_row(store, row, (low, pad + store.window.sinks, start, length), now[row], recent)
        self.seen = now

    def _check_row(
        self, store: TensorStore, row: int, at: tuple[int, int, int, int], now: Tensor, recent: int
    ) -> None:
        low, first, start, length = at
        end = first + store.packed(row)
        assert store.pages.used[row] == store.packed(row)
        kept = slice(max(low, first), min(self.ends[row], first + store.packed(row, start)))
        assert torch.equal(now[:, kept], self.seen[row][:, kept]), "a packed token has changed"
        sinks = slice(max(low, store.pads[row]), first)
        assert torch.equal(now[:, sinks], self.given[row][:, sinks]), "a sink is not exact"
        assert end <= max(first, length - recent)
        tail = slice(max(low, end), length)
        assert torch.equal(now[:, tail], self.given[row][:, tail]), "a recent token is not exact"
        self.ends[row] = end

    def select(self, rows: list[int]) -> None:
        self.given, self.seen, self.ends = self.given[rows], self.seen[rows], [self.ends[r] for r in rows]


class CheckedCache(QuantizedCache):
    """Packed tokens never change, sinks and recent tokens are exact, bytes follow the closed form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.records: dict[tuple[int, int], Record] = {}
        self.only_appended = True

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        out = super().update(key, value, layer_idx, *args, **kwargs)
        layer = self.layers[layer_idx]
        tensors = (layer.spec.key, layer.spec.value)
        for i, (store, x, tensor) in enumerate(zip(layer.stores, (key, value), tensors, strict=True)):
            self.records.setdefault((layer_idx, i), Record()).check(store, x, tensor.recent)
        if self.only_appended:
            assert sum(store.nbytes for store in layer.stores) == layer.predicted_nbytes()
        return out

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        rows = self.layers[0].key_store.rows
        super().batch_repeat_interleave(repeats)
        self._select([row for row in range(rows) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._select(indices.tolist())

    def crop(self, *args: Any) -> None:
        self.only_appended = False
        super().crop(*args)

    def _select(self, rows: list[int]) -> None:
        self.only_appended = False
        for record in self.records.values():
            record.select(rows)

    def check_at_the_end(self) -> None:
        """All bytes that live are counted, no page is lost, and none has a wrong number of owners."""
        assert self.records
        self.records.clear()
        assert live_bytes(self.layers) == self.nbytes
        assert not any(layer.deep_rollbacks for layer in self.quantized_layers)
        if self.only_appended:
            assert self.nbytes == self.predicted_nbytes()
        for store in (store for layer in self.quantized_layers for store in layer.stores):
            owners = Counter(number for table in store.pages.tables for number in table if number != GONE)
            pool = store.pages.pool
            assert owners == Counter({n: refs for n, refs in enumerate(pool._refs) if refs})
            assert len(owners) + len(pool._free) == len(pool._refs)
