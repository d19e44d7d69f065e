"""A quantized layer with a sliding window: packed pages are given up once no query can reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantkv.cache.layer import NOWHERE, QuantizedLayer, kept
from quantkv.cache.notices import Notices
from quantkv.codecs import Place
from quantkv.codecs.place import Which
from quantkv.engines import KVHandle
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.spec.specs import CacheSpec
from quantkv.store import TensorStore, View


class QuantizedSlidingLayer(QuantizedLayer):
    """Keys and values of the last `sliding_window − 1` tokens, and as many more as the roll-back reserve
    needs.

    There are no sinks: the first tokens leave the window like all others.
    """

    is_sliding = True
    _facts = (*QuantizedLayer._facts, "record_past")

    def __init__(
        self,
        spec: CacheSpec,
        sliding_window: int,
        *,
        prefill: str = "exact",
        pads: Callable[[], list[int] | None] | None = None,
        notices: Notices | None = None,
        places: Mapping[Which, Place] = NOWHERE,
    ) -> None:
        if prefill != "exact":
            raise UnsupportedError("a quantized sliding window has no prefill='final'")
        super().__init__(replace(spec, sinks=0), pads=pads, notices=notices, places=places)
        self.sliding_window = sliding_window
        self.record_past = False

    @property
    def _sliding_window_tensor(self) -> Tensor:
        """What iterating over a cache gives as third; made on demand, as `nbytes` would miss its bytes."""
        return torch.tensor(self.sliding_window)

    def _shown(self, store: TensorStore) -> View:
        return store.view().sliding(max(0, store.length - self.sliding_window + 1))

    @property
    def cumulative_length(self) -> int:
        return self.get_seq_length()

    def lazy_initialization(
        self, key_states: Tensor, value_states: Tensor, pads: list[int] | None = None
    ) -> None:
        super().lazy_initialization(key_states, value_states, pads)
        for store in self.stores:
            store.span = self.sliding_window - 1

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add `[B, H, T, D]`; returns the window before this call and the call's own tokens."""
        self._check_call(key_states, value_states)  # before anything changes
        seen, new = self.get_seq_length(), key_states.shape[-2]
        start = max(0, seen - self.sliding_window + 1)
        if not seen:
            self._begin(key_states, value_states, kwargs.get("kwargs") or {})
        # Eviction comes before the append, which then takes the freed pages. A short call gives up what lies
        # before its first query's window, a long one what lies before its last query's: it reads a copy.
        long = new > self._reserve + 1
        past = [s.view().read(start, seen) for s in self.stores] if seen and long else None
        for store in self.stores:
            store.evict((seen + new if long else seen) - self.sliding_window + 1 - self._reserve, seen + new)
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        if past is not None:
            return torch.cat([past[0], key_states], -2), torch.cat([past[1], value_states], -2)
        if isinstance(keys, KVHandle) and isinstance(values, KVHandle):
            return KVHandle(keys.kv.sliding(start)), KVHandle(values.kv.sliding(start))
        return keys, values

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        length, _ = super().get_mask_sizes(query_length)
        start = max(0, self.get_seq_length() - self.sliding_window + 1)
        return length - start, start

    def get_max_length(self) -> int:
        return self.sliding_window

    def get_max_cache_shape(self) -> int:
        return self.sliding_window

    def activate_past_recording(self) -> None:
        super().activate_past_recording()
        self.record_past = True

    def check(self, method: str, *args: Any) -> None:
        super().check(method, *args)
        if method == "crop":
            self._check_crop(*args)

    def _check_crop(self, tokens_to_remove: int) -> None:
        """A window goes back within the reserve, and not behind pages that are gone (the reserve may have
        grown only lately, or been used up by an earlier roll-back)."""
        length = self.get_seq_length()
        surplus = length - kept(length, tokens_to_remove)
        start = max(0, length - surplus - self.sliding_window + 1)
        gone = max((store.readable_from for store in self.stores), default=0)
        if surplus > self._reserve and length >= self.sliding_window:
            raise QuantKVError(f"a sliding window can take back {self._reserve} tokens, not {surplus}")
        if surplus and gone > start:
            raise QuantKVError(
                f"a sliding window cannot take back {surplus} of {length} tokens: those before token {gone} "
                "are gone; call activate_past_recording() before tokens that may be taken back"
            )

    def crop(self, tokens_to_remove: int) -> None:
        self._check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)

    def resume(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Hold the newest tokens of a sequence of `length`, as if all had come one after the other.

        Where a scale is shared with tokens that are not there any more, the oldest one stands in for them:
        it changes no scale of those that are.
        """
        missing = length - keys.shape[-2]
        for half in self.spec.halves:
            if missing and self.stored(half, keys).fit_tokens:
                raise UnsupportedError(
                    f"the {half.name} of {self.spec} are fitted on a row's first tokens, of which a window "
                    f"has dropped {missing}"
                )
        self.lazy_initialization(keys, values)
        for store, x in zip(self.stores, (keys, values), strict=True):
            absent = missing - store.skip(missing, length)
            store.append(torch.cat([x[:, :, :1].expand(-1, -1, absent, -1), x], -2))
