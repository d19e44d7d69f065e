"""One quantized attention layer of a transformers cache: keys and values in a `TensorStore` each.

`update` returns handles, so that attention reads pages and nothing decodes the whole history; the very
first call returns the model's own tensors, because prefill attends to exact keys and values (`prefill:
exact`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from quantkv.cache.notices import Notices
from quantkv.cache.padding import counted_padding
from quantkv.cache.positions import row_offsets
from quantkv.codecs import Place, Stored
from quantkv.codecs.place import Which
from quantkv.engines import KVHandle, engine_for
from quantkv.errors import QuantKVError
from quantkv.spec.specs import CacheSpec, Half
from quantkv.spec.tensors import TensorSpec
from quantkv.store import TensorStore, View

ANY_WIDTH = 64
NOWHERE: Mapping[Which, Place] = {"key": Place("key", 1, ANY_WIDTH), "value": Place("value", 1, ANY_WIDTH)}
"""Of a layer that belongs to no model: keys that are not turned, no constants."""
PAST_RECORDING_RESERVE = 256
"""Exact tokens kept for roll-back once a decoding method says that it will take tokens back."""
_PICKS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "reorder_cache": lambda rows, beams: rows.index_select(0, beams.cpu()),
    "batch_repeat_interleave": lambda rows, repeats: rows.repeat_interleave(repeats),
    "batch_select_indices": lambda rows, indices: rows[_on_host(indices)],
}
"""How transformers picks rows, method by method; applied to row numbers, which live on the host."""


def _handle_on_use(name: str) -> Any:
    """For code that reads a layer's tensors directly: they decode on use, and cannot be set."""

    def read(layer: QuantizedLayer) -> Tensor | None:
        store = getattr(layer, name)
        return None if store is None else KVHandle(layer._shown(store))

    def write(layer: QuantizedLayer, value: None) -> None:
        assert value is None

    return property(read, write)


class QuantizedLayer(DynamicLayer):
    """Packed keys and values of one layer. `spec` has no per-layer overrides left."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    _facts: tuple[str, ...] = ("_reserve", "deep_rollbacks", "padding_source")

    def __init__(
        self,
        spec: CacheSpec,
        *,
        prefill: str = "exact",
        pads: Callable[[], list[int] | None] | None = None,
        notices: Notices | None = None,
        places: Mapping[Which, Place] = NOWHERE,
    ) -> None:
        """`places` has what a model's layer knows of its keys and values before any come, but for shapes and
        dtypes: how keys are turned, constants."""
        self.key_store: TensorStore | None = None
        self.value_store: TensorStore | None = None
        super().__init__()
        self.spec, self.prefill = spec, prefill
        self._places = places
        self._known_pads = pads or _unknown
        self._notices = notices or Notices()
        self._reserve = spec.reserve
        self.deep_rollbacks = 0
        self.padding_source = "none"

    keys, values = _handle_on_use("key_store"), _handle_on_use("value_store")

    def _shown(self, store: TensorStore) -> View:
        """What a later query may read."""
        return store.view()

    def decoded(self) -> list[Tensor]:
        """Plain keys and values of what a later query may read."""
        return [kv.read(0, kv.shape[2]) for kv in map(self._shown, self.stores)]

    @property
    def stores(self) -> tuple[TensorStore, ...]:
        return tuple(s for s in (self.key_store, self.value_store) if s is not None)

    def lazy_initialization(
        self, key_states: Tensor, value_states: Tensor, pads: list[int] | None = None
    ) -> None:
        """Build the stores for tensors of this shape, dtype and device."""
        self.key_store, self.value_store = (
            self._new_store(half, x, pads)
            for half, x in zip(self.spec.halves, (key_states, value_states), strict=True)
        )
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def stored(self, half: Half, x: Tensor) -> Stored:
        """How the keys, or the values, of this layer are stored, of which `x` `[B, H, T, D]` are some."""
        place = self._places[half.which]
        return half.tensor.at(replace(place, num_heads=x.shape[1], head_dim=x.shape[3], dtype=x.dtype))

    def _new_store(self, half: Half, x: Tensor, pads: list[int] | None) -> TensorStore:
        stored = self.stored(half, x)
        engine, _ = engine_for(stored, x.device)
        return TensorStore(
            stored, replace(half.window, reserve=self._reserve), len(x), x.device, engine, pads
        )

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add `[B, H, T, D]` keys and values; returns what this call's queries may see."""
        first = self.get_seq_length() == 0
        self._check_call(key_states, value_states)  # before anything changes
        if first:  # padding is laid out before the tokens come, and may grow as long as no real one has
            self._begin(key_states, value_states, kwargs.get("kwargs") or {})
        elif self.awaits_padding and (pads := self._known_pads()) is not None:
            for store in self.stores:
                store.extend_padding(pads)
        assert self.key_store is not None and self.value_store is not None
        self._find_offsets(kwargs.get("kwargs") or {}, key_states.shape[-2])
        views = (self.key_store.append(key_states), self.value_store.append(value_states))
        # only appended tokens can have filled a scale or ended the exact history
        if key_states.is_cpu and (self.key_store.pages.saturated or self.value_store.pages.saturated):
            self._say("saturated")
        if self.spec.quantize_after and self.packed_at is not None:
            self._say("packed_at")
        if first and self.prefill == "exact":
            return key_states, value_states
        if first:
            views = (views[0].after_packing(), views[1].after_packing())
        return KVHandle(views[0]), KVHandle(views[1])

    def _check_call(self, key_states: Tensor, value_states: Tensor) -> None:
        """Raise where a call does not fit, before anything has changed."""
        if key_states.dim() != 4 or key_states.shape[::2] != value_states.shape[::2]:
            raise QuantKVError(
                "keys and values are [rows, heads, tokens, width] of as many rows and tokens, not "
                f"{list(key_states.shape)} and {list(value_states.shape)}"
            )
        if not self.get_seq_length():
            return
        if key_states.requires_grad:
            raise QuantKVError("a quantized cache carries no gradients: run under torch.no_grad()")
        if key_states.shape[0] != self._rows:
            raise QuantKVError(f"the cache holds {self._rows} rows, this call brings {key_states.shape[0]}")
        for store, x in zip(self.stores, (key_states, value_states), strict=True):
            held, new = (store.heads, store.head_dim, store.dtype), (x.shape[1], x.shape[3], x.dtype)
            if held != new:
                raise QuantKVError(f"the cache holds (heads, width, dtype) {held}, this call brings {new}")

    def _begin(self, key_states: Tensor, value_states: Tensor, attention_kwargs: dict[str, Any]) -> None:
        rows, length = key_states.shape[0], key_states.shape[-2]
        pads = self._find_pads(attention_kwargs, rows, length)
        given = [(x.shape[:2], x.shape[3], x.dtype, x.device, pads) for x in (key_states, value_states)]
        if [(s.shape[:2], s.head_dim, s.dtype, s.device, s.pads) for s in self.stores] != given:
            self.lazy_initialization(key_states, value_states, pads)  # an emptied layer's stores serve again

    def _find_pads(self, attention_kwargs: dict[str, Any], rows: int, length: int) -> list[int]:
        """Left padding of each row: from the mask, else from position ids that show it, else none."""
        pads, source = self._known_pads(), "attention mask"
        if pads is None or len(pads) != rows:
            pads = counted_padding(attention_kwargs.get("position_ids"), rows, length)
            source = "none" if pads is None else "position ids"
        self.padding_source = source
        return pads or [0] * rows

    @property
    def positions(self) -> bool:
        """Whether its method needs to know the positions of tokens."""
        return self.spec.key.positions

    def check_positions(self, attention_kwargs: dict[str, Any], rows: int, length: int) -> None:
        """Raise what an update would for positions that do not count on, before anything changes."""
        told, start = attention_kwargs.get("position_ids"), self.get_seq_length()
        if self.key_store is not None and start:
            row_offsets(told, self.key_store.pads, start, length, self.key_store.offsets)
        else:
            row_offsets(told, self._find_pads(attention_kwargs, rows, length), 0, length, [0] * rows)

    def _find_offsets(self, attention_kwargs: dict[str, Any], length: int) -> None:
        """Where rows begin, for methods that need positions; UnsupportedError where the call does not count
        on from there."""
        told = attention_kwargs.get("position_ids")
        for store in self.stores:
            if store.stored.positions:
                store.offsets = row_offsets(told, store.pads, store.length, length, store.offsets)

    @property
    def awaits_padding(self) -> bool:
        """Whether some row has seen nothing but padding."""
        return self.key_store is None or max(self.key_store.pads) >= self.key_store.length

    def get_seq_length(self, *args: Any) -> int:
        return 0 if self.key_store is None else self.key_store.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        length = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return self.get_seq_length() + length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Zero or less drops so many tokens; more keeps so many (as transformers before 5.14 calls it)."""
        keep = kept(self.get_seq_length(), tokens_to_remove)
        if keep < self.get_seq_length():
            deep = [store.truncate(keep) for store in self.stores]
            self.deep_rollbacks += max(deep)
            if any(rows and not store.is_lossless for rows, store in zip(deep, self.stores, strict=True)):
                self._say("deep_rollbacks")

    def activate_past_recording(self) -> None:
        """Hold a longer reserve from now on, for decoding methods that take tokens back."""
        self._reserve = max(self._reserve, PAST_RECORDING_RESERVE)
        for store in self.stores:
            store.set_reserve(self._reserve)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(self.rows_after("reorder_cache", beam_idx))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(self.rows_after("batch_repeat_interleave", repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(self.rows_after("batch_select_indices", indices))

    def rows_after(self, method: str, argument: Any) -> list[int]:
        """The present rows that a call leaves, in order; raises what torch raises where there are none."""
        if not self.get_seq_length():
            return list(range(self._rows))
        rows = _PICKS[method](torch.arange(self._rows), argument)
        if rows.dim() != 1 or not len(rows):
            raise QuantKVError(f"{method}({argument}) leaves no batch: a cache keeps one row or more")
        return rows.tolist()

    def check(self, method: str, *args: Any) -> None:
        """Raise what a method of this layer would raise, before it changes anything."""
        if method in _PICKS:
            self.rows_after(method, *args)

    @property
    def _rows(self) -> int:
        return 0 if self.key_store is None else self.key_store.rows

    def _select(self, rows: list[int]) -> None:
        for store in self.stores:
            store.select(rows)

    def reset(self) -> None:
        self.key_store = self.value_store = None
        self.is_initialized = False
        self.deep_rollbacks = 0

    def offload(self) -> None:
        raise QuantKVError("a quantized cache does not offload; it stays on its layer's device")

    def prefetch(self) -> None:
        """Nothing to do: the layer never left its device."""

    @property
    def saturated(self) -> int:
        """Stored numbers at the end of their dtype's range, as they were packed. On a CPU they are said at
        once, on other devices, which no update reads back from, when this is asked for."""
        count = sum(store.pages.saturated for store in self.stores)
        if count:
            self._say("saturated")
        return count

    @property
    def packed_at(self) -> int | None:
        """How many tokens were cached when those kept exact by `+q` were first packed."""
        return min((s.packed_at for s in self.stores if s.packed_at is not None), default=None)

    def _say(self, event: str) -> None:
        self._notices.say(event, str(self.spec))

    @property
    def engine(self) -> str:
        """The engine that reads this layer's pages: `native-` and its build, or `reference`."""
        return self._served[0]

    @property
    def engine_why(self) -> str:
        """Why it is the reference; empty where it is not."""
        return self._served[1]

    @property
    def _served(self) -> tuple[str, str]:
        """The engine, and why none before it; before the first update as far as the spec says."""
        if self.stores:
            methods = [(store.stored, store.device) for store in self.stores]
        else:
            pairs = [(half.tensor, self._places[half.which]) for half in self.spec.halves]
            methods = [(tensor.at(fitting(place, tensor)), torch.device("cpu")) for tensor, place in pairs]
        served = [engine_for(*method) for method in methods]
        engine, _ = served[0] if served[0][1] else served[1]
        return engine.name, "; ".join(dict.fromkeys(why for _, why in served if why))

    def storages(self) -> Iterable[Tensor]:
        for store in self.stores:
            yield from store.storages()

    @property
    def exact_nbytes(self) -> int:
        return sum(store.exact_nbytes for store in self.stores)

    @property
    def used_nbytes(self) -> int:
        return self.exact_nbytes + sum(store.pages.used_nbytes for store in self.stores)

    def predicted_nbytes(self) -> int:
        """The closed form, from shapes and lengths alone."""
        return sum(store.predicted_nbytes() for store in self.stores)

    def fork(self, pads: Callable[[], list[int] | None]) -> QuantizedLayer:
        """A layer with the same tokens on the same pages."""
        other = copy.copy(self)
        other._known_pads = pads
        if self.key_store is not None and self.value_store is not None:
            other.key_store, other.value_store = self.key_store.fork(), self.value_store.fork()
        return other

    def resume(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Hold the keys and values of a sequence of `length`, of which a window may keep only the newest."""
        self.update(keys, values)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain numbers from which `restore` makes the same layer again."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {"layer": {name: getattr(self, name) for name in self._facts}}
        for name, store in zip(("key", "value"), self.stores, strict=False):
            parts, numbers[name] = store.state()
            tensors |= {f"{name}.{part}": x for part, x in parts.items()}
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Fill a new layer with what `state` gave."""
        self.__dict__.update(numbers["layer"])
        if "key" not in numbers:
            return
        self.lazy_initialization(tensors["key.ring"], tensors["value.ring"], numbers["key"]["pads"])
        for name, store in zip(("key", "value"), self.stores, strict=True):
            state = [f"state.{fitted}" for fitted in store.pages.row_state.numbers]
            parts = {part: tensors[f"{name}.{part}"] for part in ("pages", "ring", "sinks", *state)}
            store.restore(parts, numbers[name])


def fitting(place: Place, tensor: TensorSpec) -> Place:
    """The place, with some width that groups of channels divide where no width is known."""
    group = tensor.group if tensor.sharing == "token" and tensor.group else 1
    return (
        place
        if place.num_heads > 1 or place.head_dim != ANY_WIDTH
        else replace(place, head_dim=ANY_WIDTH * group)
    )


def kept(length: int, tokens_to_remove: int) -> int:
    """How many of `length` tokens a crop leaves."""
    return max(0, length + tokens_to_remove) if tokens_to_remove <= 0 else min(length, tokens_to_remove)


def _unknown() -> None:
    """The padding of a layer that no cache tells."""


def _on_host(indices: Any) -> Any:
    return indices.cpu() if isinstance(indices, Tensor) else indices
