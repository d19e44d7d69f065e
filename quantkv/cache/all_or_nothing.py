"""Calls that change a cache: every layer takes part, or none has changed.

Layers of transformers may refuse halfway: a full window cannot be cropped, and a wrong width shows only once
the length has been counted. They put new tensors into their attributes and seldom write into old ones, so
putting the attributes back is enough. Packed layers check before they change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

from quantkv.cache.layer import QuantizedLayer, kept
from quantkv.errors import QuantKVError


class AllOrNothing(DynamicCache):
    """A cache of packed layers and of transformers' own in which a refused call changes nothing."""

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.layers[layer_idx], QuantizedLayer):  # it checks before it changes
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        with self._unless_refused(layer_idx):
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        with self._unless_refused(layer_idx):
            return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Tensor:
        with self._unless_refused(layer_idx):
            return super().update_recurrent_state(recurrent_states, layer_idx, *args, **kwargs)

    def _unless_refused(self, layer_idx: int) -> AbstractContextManager[None]:
        return unchanged_on_error(exact_layers(self.layers[layer_idx : layer_idx + 1]))

    def crop(self, tokens_to_remove: int) -> None:
        """Zero or less takes back that many tokens of every layer, a positive number keeps that many. To take
        back none lets go of tokens that were recorded for it."""
        length = max(map(seq_length, self.layers), default=0)
        keep = kept(length, tokens_to_remove)
        if keep < length:
            self._refuse_running_states(length - keep)
        elif not any(getattr(layer, "record_past", False) for layer in self.layers):
            return
        self._change("crop", keep - length, verify=lambda layer: _check_held(layer, keep))

    def reset(self) -> None:
        self._change("reset")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._change("reorder_cache", beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change("batch_repeat_interleave", repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change("batch_select_indices", indices)

    def _change(self, method: str, *args: Any, verify: Callable[[Any], None] = lambda layer: None) -> None:
        """Call a method of every layer, and `verify` after transformers' own; raises the first refusal."""
        packed, exact = packed_layers(self.layers), exact_layers(self.layers)
        for layer in packed:  # first, as they can say no without having changed
            layer.check(method, *args)
        with unchanged_on_error(exact):  # next, as they can be put back
            for layer in exact:
                getattr(layer, method)(*args)
                verify(layer)
        for layer in packed:  # last, when nobody says no any more: pages cannot be put back
            getattr(layer, method)(*args)

    def _refuse_running_states(self, surplus: int) -> None:
        for index, layer in enumerate(self.layers):
            if any(getattr(layer, "is_recurrent_states_initialized", {}).values()):
                raise QuantKVError(
                    f"cannot take back {surplus} tokens: layer {index}, a {type(layer).__name__}, holds a "
                    "running state of all of them"
                )


@contextmanager
def unchanged_on_error(exact: Iterable[Any]) -> Iterator[None]:
    """Put back what layers of transformers held where the body raises."""
    before = [(layer, _attributes(layer)) for layer in exact]
    try:
        yield
    except BaseException:
        for layer, attributes in before:
            vars(layer).clear()
            vars(layer).update(attributes)
        raise


def packed_layers(layers: Iterable[Any]) -> list[QuantizedLayer]:
    return [layer for layer in layers if isinstance(layer, QuantizedLayer)]


def exact_layers(layers: Iterable[Any]) -> list[Any]:
    return [layer for layer in layers if not isinstance(layer, QuantizedLayer)]


def _attributes(layer: Any) -> dict[str, Any]:
    return {name: dict(x) if isinstance(x, dict) else x for name, x in vars(layer).items()}


def seq_length(layer: Any) -> int:
    """Tokens that a layer counts; 0 for one that keeps a running state or nothing."""
    return int(layer.get_seq_length()) if hasattr(layer, "get_seq_length") else 0


def _check_held(layer: Any, length: int) -> None:
    """Raise where a layer that forgets old tokens has been taken back beyond what it recorded."""
    held = []
    if isinstance(layer, DynamicSlidingWindowLayer) and layer.is_initialized:
        held.append((layer.keys.shape[-2], min(layer.get_seq_length(), layer.sliding_window - 1)))
    for index, state in getattr(layer, "conv_states", {}).items():
        if state is not None:
            held.append((state.shape[-1], min(length, layer.conv_kernel_size[index])))
    for has, needs in held:
        if has < needs:
            raise QuantKVError(
                f"cannot go back to {length} tokens: a {type(layer).__name__} holds {has} of the {needs} "
                "that it needs there; call activate_past_recording() before tokens that may be taken back"
            )
