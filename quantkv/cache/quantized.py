"""`QuantizedCache`: a transformers cache whose full-attention layers hold packed keys and values."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from quantkv.cache.all_or_nothing import AllOrNothing, exact_layers, packed_layers, seq_length
from quantkv.cache.kv_shapes import check_fits, donor
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.layer_shapes import held_nbytes, held_tensors
from quantkv.cache.notices import Notices
from quantkv.cache.padding import ASKED_FOR_MASK, LENGTH_READ, have_masks_tell
from quantkv.cache.places import layer_places
from quantkv.cache.saving import read_cache, write_cache
from quantkv.cache.sliding import QuantizedSlidingLayer
from quantkv.codecs.constants import constants_named
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.spec.specs import CacheSpec, parse_spec

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig

PREFILLS = ("exact", "final")


class QuantizedCache(AllOrNothing):
    """A drop-in for `DynamicCache`: `model.generate(..., past_key_values=QuantizedCache(model.config,
    "int4-head"))`.

    `spec` is a preset name, a short string or a `CacheSpec`. `prefill="final"` lets the first call attend
    to what the store ends up holding, as simulators do; the default attends to exact keys and values.
    Layers other than full attention stay as transformers builds them and are listed by `describe()`. Raises
    QuantKVError where the spec cannot fit the model, UnsupportedError where no layer of the model can be
    quantized.
    """

    is_compileable = False

    def __init__(self, config: PreTrainedConfig, spec: str | CacheSpec, *, prefill: str = "exact") -> None:
        have_masks_tell()
        if prefill not in PREFILLS:
            raise QuantKVError(f"prefill {prefill!r}; legal: {', '.join(PREFILLS)}")
        super().__init__(config=config)
        self.config, self.spec, self.prefill = config, parse_spec(spec), prefill
        self.spec.check_layers(len(self.layers))
        self._pads: dict[int, list[int]] = {}
        self._notices = Notices()
        self._reasons: dict[int, str] = {}
        for index, layer in enumerate(self.layers):
            self._replace(index, layer)
        self._first = next((i for i, layer in enumerate(self.layers) if isinstance(layer, DynamicLayer)), 0)
        if not self.quantized_layers:
            kinds = sorted(set(self._reasons.values()))
            raise UnsupportedError(f"{self.spec.name} applies to no layer of this model: {'; '.join(kinds)}")

    def _replace(self, index: int, layer: Any) -> None:
        spec = self.spec.for_layer(index, len(self.layers))
        if not packs(spec, layer):
            self._reasons[index] = _why_exact(layer, donor(self.config, index))
            return
        check_fits(spec, self.config, index)
        make: Callable[..., QuantizedLayer] = QuantizedLayer
        if type(layer) is DynamicSlidingWindowLayer:
            make = partial(QuantizedSlidingLayer, sliding_window=layer.sliding_window)
        pads, places = partial(self._take_pads, index), layer_places(self.config, spec, index)
        self.layers[index] = make(spec, prefill=self.prefill, pads=pads, notices=self._notices, places=places)

    @property
    def quantized_layers(self) -> list[QuantizedLayer]:
        return packed_layers(self.layers)

    @property
    def num_quantized_layers(self) -> int:
        return len(self.quantized_layers)

    @property
    def engine(self) -> str:
        """The engine that serves the fused attention path: `native-` and its build, or `reference` where
        some layer's codec, dtype or device has no kernels."""
        engines = {layer.engine for layer in self.quantized_layers}
        return "reference" if "reference" in engines else engines.pop()

    @property
    def engine_why(self) -> str:
        """Why the reference engine serves some layer; empty where it serves none."""
        return "; ".join(
            dict.fromkeys(layer.engine_why for layer in self.quantized_layers if layer.engine_why)
        )

    @property
    def saturated(self) -> int:
        """Stored scales, zeros and values at the end of their dtype's range: what was given did not fit."""
        return sum(layer.saturated for layer in self.quantized_layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add a layer's keys and values."""
        if getattr(self, "_is_user_defined", False):  # `generate` was given this cache
            self._check_generate(kwargs.get("kwargs") or {})
        if layer_idx == self._first:
            self._check_positions(kwargs.get("kwargs") or {}, *key_states.shape[::2])
        views = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self._pads.pop(layer_idx, None)  # a later call may come without a 2-D mask
        return views

    def _check_positions(self, attention_kwargs: dict[str, Any], rows: int, length: int) -> None:
        """Raise where a call's positions do not count on, before its first layer changes."""
        asking = [layer for layer in self.quantized_layers if layer.positions]
        if asking:
            asking[0].check_positions(attention_kwargs, rows, length)

    def _check_generate(self, attention_kwargs: dict[str, Any]) -> None:
        """Raise where `generate` would go on with text of its own: without `use_cache` each step brings all
        tokens again, and an encoder-decoder model adds its encoder's tokens to the decoder's."""
        if attention_kwargs.get("use_cache") is False:
            raise QuantKVError("generate was given a quantized cache and use_cache=False: leave one out")
        if getattr(self.config, "is_encoder_decoder", False):
            raise QuantKVError(
                "an encoder-decoder model takes EncoderDecoderCache(QuantizedCache(config, spec), "
                "QuantizedCache(config, spec)), not one QuantizedCache"
            )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        LENGTH_READ.set(weakref.ref(self))
        return super().get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        ASKED_FOR_MASK.set(weakref.ref(self))
        self._pads = {}
        return super().get_mask_sizes(query_length, layer_idx)

    @property
    def awaits_padding(self) -> bool:
        """Whether some row has no real token yet: its left padding may still grow."""
        return any(layer.awaits_padding for layer in self.quantized_layers)

    def set_padding(self, pads: list[int]) -> None:
        """Left padding of each row, for the update that follows; it counts for rows without a real token."""
        self._pads = dict.fromkeys(range(len(self.layers)), pads)

    def _take_pads(self, index: int) -> list[int] | None:
        return self._pads.get(index)

    def activate_past_recording(self) -> None:
        for layer in self.layers:
            if hasattr(layer, "activate_past_recording"):
                layer.activate_past_recording()

    def fork(self) -> QuantizedCache:
        """A cache that continues on its own; packed bytes are shared until one of the two writes."""
        other = copy.copy(self)
        other._pads = dict(self._pads)
        other.layers = [_fork_layer(layer, other, index) for index, layer in enumerate(self.layers)]
        return other

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens: within the reserve bit-equal to never having gone further."""
        surplus = self.get_seq_length() - length
        if length < 0 or surplus < 0:
            raise QuantKVError(f"cannot keep {length} of {self.get_seq_length()} tokens")
        try:
            if surplus:
                self.crop(-surplus)
        except RuntimeError as error:
            raise QuantKVError(f"cannot take back {surplus} tokens: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the cache to a safetensors file."""
        write_cache(Path(path), self.layers, self.config, self.spec, self.prefill)

    @classmethod
    def load(
        cls, path: str | Path, config: PreTrainedConfig, spec: str | CacheSpec | None = None
    ) -> QuantizedCache:
        """A cache from `save`, for the same model; a given `spec` must be the saved one. Raises
        QuantKVError naming both sides."""
        saved = read_cache(Path(path), config, spec)
        cache = cls(config, saved.spec, prefill=saved.prefill)
        saved.fill(cache.layers)
        return cache

    @classmethod
    def from_cache(cls, cache: Cache, config: PreTrainedConfig, spec: str | CacheSpec) -> QuantizedCache:
        """Pack what a plain `DynamicCache` without padding holds."""
        packed = cls(config, spec)
        count = len(cache.layers) if isinstance(cache, DynamicCache) else 0
        if count != len(packed.layers):
            raise QuantKVError(
                f"from_cache takes a DynamicCache of {len(packed.layers)} layers, as "
                f"DynamicCache(config=model.config) makes it, not a {type(cache).__name__} of {count}"
            )
        if any(getattr(layer, "record_past", False) for layer in cache.layers):
            packed.activate_past_recording()
        for index, (source, layer) in enumerate(zip(cache.layers, packed.layers, strict=True)):
            if not isinstance(layer, QuantizedLayer):
                packed.layers[index] = _copied(source, layer)
            elif source.get_seq_length():
                layer.resume(source.keys, source.values, source.get_seq_length())
        return packed

    def to_dynamic(self) -> DynamicCache:
        """A plain `DynamicCache` with decoded values; of a window, what transformers keeps of it."""
        plain = DynamicCache(config=self.config)
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, QuantizedLayer):
                plain.layers[index] = copy.deepcopy(layer)
            elif layer.is_initialized:
                plain.layers[index].update(*layer.decoded())
            if isinstance(layer, QuantizedSlidingLayer):
                plain.layers[index].cumulative_length = layer.get_seq_length()
                plain.layers[index].record_past = layer.record_past
        return plain

    def storages(self) -> Iterable[Tensor]:
        """Every tensor the cache keeps alive, the exact layers' included."""
        for layer in self.layers:
            yield from layer.storages() if isinstance(layer, QuantizedLayer) else held_tensors(layer)

    @property
    def nbytes(self) -> int:
        """Bytes of all live storages, each counted once."""
        sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.storages()}
        return sum(sizes.values())

    @property
    def constants_nbytes(self) -> int:
        """Bytes of the constants that its layers take; no part of `nbytes`, as all caches share them."""
        named = {layer.spec.constants for layer in self.quantized_layers} - {""}
        return sum(constants_named(name).nbytes for name in named)

    @property
    def exact_nbytes(self) -> int:
        """Bytes of exact tokens: sinks, window and reserve, and layers that are not quantized."""
        return self._nbytes_of_layers(lambda layer: layer.exact_nbytes)

    @property
    def used_nbytes(self) -> int:
        """`nbytes` less pages that are allocated and empty."""
        return self._nbytes_of_layers(lambda layer: layer.used_nbytes)

    def predicted_nbytes(self) -> int:
        """The closed form of `nbytes` from shapes and lengths, for a cache that was only appended to; layers
        that are not quantized count as transformers holds them."""
        return self._nbytes_of_layers(QuantizedLayer.predicted_nbytes)

    def _nbytes_of_layers(self, packed: Callable[[QuantizedLayer], int]) -> int:
        """Bytes by a count for packed layers; others count as transformers holds them."""
        return sum(map(packed, self.quantized_layers)) + sum(map(held_nbytes, exact_layers(self.layers)))

    @property
    def elements(self) -> int:
        """Key and value elements that the cached tokens stand for."""
        packed = (math.prod(s.shape) * s.length for layer in self.quantized_layers for s in layer.stores)
        exact = (t.numel() for layer in exact_layers(self.layers) for t in held_tensors(layer))
        return sum(packed) + sum(exact)

    @property
    def effective_bits(self) -> float:
        """Bits held per cached element, window, sinks, reserve and slack included; NaN of an empty cache."""
        return 8 * self.nbytes / self.elements if self.elements else float("nan")

    def describe(self) -> pd.DataFrame:
        """A row per layer: what is quantized and how, what is exact and why, the engine that reads it, bytes,
        and events: saturated numbers, exact history packed late, roll-backs beyond the reserve."""
        import pandas as pd

        rows = [self._describe_layer(i, layer) for i, layer in enumerate(self.layers)]
        return pd.DataFrame(rows).set_index("layer")

    def _describe_layer(self, index: int, layer: Any) -> dict[str, Any]:
        if not isinstance(layer, QuantizedLayer):
            return {
                "layer": index,
                "quantized": False,
                "format": "exact",
                "why": self._reasons[index],
                "engine": "transformers",
                "tokens": seq_length(layer),
                "nbytes": held_nbytes(layer),
            }
        key, value = layer.key_store, layer.value_store
        return {
            "layer": index,
            "quantized": not layer.spec.is_raw,
            "format": str(layer.spec),
            "why": _why_packed(layer.spec),
            "engine": layer.engine,
            "engine_why": layer.engine_why,
            "tokens": layer.get_seq_length(),
            "packed_keys": key.packed(0) if key else 0,
            "packed_values": value.packed(0) if value else 0,
            "nbytes": sum(s.nbytes for s in layer.stores),
            "saturated": layer.saturated,
            "packed_at": layer.packed_at,
            "deep_rollbacks": layer.deep_rollbacks,
            "materialized": sum(s.tally.materialized for s in layer.stores),
            "padding_from": layer.padding_source,
        }


def _why_packed(spec: CacheSpec) -> str:
    """Which tokens of a packed layer stay exact."""
    why = f"exact: first {spec.sinks}, last {spec.key.recent} keys, last {spec.value.recent} values"
    after = max(spec.key_window.after, spec.value_window.after)
    return why + (f"; nothing is packed up to {after} tokens" if after else "")


def _why_exact(layer: Any, shared: int | None) -> str:
    if shared is not None:
        return f"reads the keys and values of layer {shared}"
    if type(layer).__name__ == "DummyLayer":
        return "has no keys and values"
    if type(layer) is DynamicSlidingWindowLayer:
        return f"sliding window of {layer.sliding_window}, bounded already (+sliding packs it)"
    return f"{type(layer).__name__} keeps its own exact state"


def _copied(source: Any, layer: Any) -> Any:
    """A copy of `source`, or `layer` with its tokens if its kind differs, as in caches without a config."""
    if type(source) is type(layer) or not source.get_seq_length():
        return copy.deepcopy(source)
    layer.update(source.keys, source.values)
    return layer


def _fork_layer(layer: Any, cache: QuantizedCache, index: int) -> Any:
    if isinstance(layer, QuantizedLayer):
        return layer.fork(partial(cache._take_pads, index))
    return copy.deepcopy(layer)


def packs(spec: CacheSpec, layer: Any) -> bool:
    """Whether the spec packs a layer as transformers builds it: full attention, and windows if it says so."""
    return type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and spec.sliding)
