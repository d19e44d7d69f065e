"""A decode-exact pass in progress: what the attention of each layer asks, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from quantkv.cache.positions import pass_offsets
from quantkv.decode_exact.one_pass import OnePass
from quantkv.decode_exact.rope import Reach
from quantkv.decode_exact.schedule import BatchRows, Call, Schedule
from quantkv.decode_exact.split_attention import Kept, Saturation, Storage, mixed_attention
from quantkv.engines import AttentionOptions, KVHandle
from quantkv.errors import QuantKVError, UnsupportedError


@dataclass
class Simulation:
    """What `simulate` yields. `simulated` marks a format that is a plain function and holds no bytes."""

    layers: dict[int, tuple[Storage, Storage]]
    schedule: Schedule
    simulated: bool
    model: OnePass
    spans: dict[int, int] = field(default_factory=dict)
    """How many tokens each layer with a sliding window attends to."""
    lengths: Tensor | None = None
    """Where each row ends, where the caller said so."""
    saturation: Saturation = field(default_factory=Saturation)
    _told: BatchRows | None = None
    _positions: Any = None
    _seen: int | None = None
    _call: Call | None = None
    _calls: Iterator[tuple[int, int]] = field(default_factory=lambda: iter(()))
    _reaches: list[Reach] = field(default_factory=list)
    _new_rows: bool = True
    _counts: Tensor = field(default_factory=lambda: torch.zeros(2, 0, dtype=torch.float64))
    _earlier: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))

    @property
    def reads(self) -> tuple[int, int]:
        """(query, key) pairs of counted tokens in all layers, keys and values apart, and the packed ones."""
        pairs, packed = (self._earlier + self._counts.sum(-1)).tolist()
        return int(pairs), int(packed)

    @property
    def packed_read_fraction(self) -> float:
        """Share of the (query, key) pairs of decoded real tokens that were packed; 0 where all tokens were
        prefill, NaN as long as no attention ran inside."""
        pairs, packed = self.reads
        if not self._counts.numel():
            return float("nan")
        return packed / pairs if pairs else 0.0

    @property
    def packed_read_fractions(self) -> list[float]:
        """The same for each row of the last batch; its later calls, on a plain cache, count with it."""
        pairs, packed = self._counts
        return (packed / pairs.clamp_min(1)).tolist()

    @property
    def pads(self) -> list[int] | None:
        """Leading padding of each row, as the last mask or position ids told."""
        return None if self._told is None else self._told.begins.tolist()

    def begin_forward(self, positions: Any = None) -> None:
        """The model is called: of its rows nothing but position ids is known until a mask tells."""
        self._told = self._seen = self._call = None
        self._positions = positions
        self._calls = cycle(self.model.calls)
        self._reaches.clear()
        self._new_rows = True

    def begin_call(self, padding: Tensor | None, seen: int) -> None:
        """The 2-D mask `[B, T]` and the tokens cached before this call, as the mask function is told; a mask
        over an encoder's tokens comes after that and tells neither."""
        if self._told is None and padding is not None:
            self._told = BatchRows.of_mask(padding)
        self._seen, self._call = max(seen, self._seen or 0), None

    def reach(self, reach: Reach) -> None:
        """How far the positions of this call go, as its rotary embedding is told."""
        self._reaches.append(reach)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: AttentionOptions,
        told: Tensor | None,
    ) -> Tensor | None:
        """Attention of one layer, `[B, Hq, Q, Dv]`; None where the layer is not quantized."""
        if isinstance(key, KVHandle) or isinstance(value, KVHandle):
            raise QuantKVError(
                "simulate() stands in for a quantized cache: call the model with a plain cache or none"
            )
        layer = self._donor(layer)
        call, span = self._call_of(query, key), self.spans.get(layer)
        if span is not None and key.shape[2] == call.stop > span:
            _check_span(layer, span, options.mask)
        windows = tuple(storage.window for storage in self.layers.get(layer, ()))
        self._counts += call.counts(span or call.stop, windows)
        if layer not in self.layers:
            return None
        if key.shape[2] != call.stop:
            raise QuantKVError(
                f"simulate() needs every token's keys: layer {layer} gave {key.shape[2]} of {call.stop}; "
                "use a DynamicCache() made without a config, which drops nothing"
            )
        keys, values = (
            Kept.make(storage, x, call.pads, call.bounds(storage.window), self._offsets(call, storage, told))
            for storage, x in zip(self.layers[layer], (key, value), strict=True)
        )
        return mixed_attention(query, keys, values, call.exact_groups(), call.offset, span, options)

    def _offsets(self, call: Call, storage: Storage, told: Tensor | None) -> list[int]:
        """The position of each row's first real token, as the cache would be told; where nobody asks, 0."""
        begins, ends = call.rows.begins.tolist(), call.rows.ends.tolist()
        asked = storage.positions and self.model.tells
        return pass_offsets(told if asked else None, begins, ends, call.offset)

    def _donor(self, layer: int) -> int:
        """The layer whose keys and values this call of attention reads."""
        expected, donor = next(self._calls)
        if layer != expected:
            raise UnsupportedError(f"attention of layer {layer} ran where that of layer {expected} was due")
        return donor

    def _call_of(self, query: Tensor, key: Tensor) -> Call:
        """The call that runs; its first layer sets it up."""
        if self._call is None:
            batch, _, length, _ = query.shape
            offset = key.shape[2] - length if self._seen is None else self._seen
            if self._told is None and offset == 0:
                self._told = BatchRows.of_positions(self._positions, batch, length)
            if offset and length > 1 and not self.model.continues:
                raise UnsupportedError(
                    "the model's linear layers do not continue from a cache with several tokens at once: "
                    "run the whole sequence in one pass"
                )
            self._call = Call(self.schedule, self._rows(batch, offset + length), offset, offset + length)
            for reach in self._reaches:
                reach.check(*self._call.last())
            self._begin_rows(batch, offset)
        return self._call

    def _rows(self, batch: int, stop: int) -> BatchRows:
        rows = BatchRows.unpadded(batch, stop) if self._told is None else self._told
        if self.lengths is None:
            return rows
        if len(self.lengths) != batch:
            raise QuantKVError(f"lengths names {len(self.lengths)} rows, the model was called with {batch}")
        if int(self.lengths.max()) > stop:
            raise QuantKVError(f"lengths names {int(self.lengths.max())} tokens, the rows have {stop}")
        return BatchRows(rows.begins, self.lengths)

    def _begin_rows(self, batch: int, offset: int) -> None:
        """Rows that a plain cache continues are counted on."""
        if (self._new_rows and offset == 0) or self._counts.shape[1] != batch:
            self._earlier += self._counts.sum(-1)
            self._counts = torch.zeros(2, batch, dtype=torch.float64)
        self._new_rows = False


def _check_span(layer: int, span: int, mask: Tensor | None) -> None:
    """Raise where the last query sees tokens that have left the window: decoding would have dropped them."""
    out = None if mask is None else mask[:, :, -1, : mask.shape[-1] - span]
    if out is None or bool((out if out.dtype == torch.bool else out > torch.finfo(out.dtype).min / 2).any()):
        raise UnsupportedError(
            f"layer {layer} caches its last {span} tokens, but attends to all of them without a cache: one "
            f"pass of more than {span} tokens is not decoding"
        )
