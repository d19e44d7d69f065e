"""What transformers calls: the attention and mask functions registered as `"quantkv"`, and `use`, which
turns them on and off again.

The mask function must be registered beside the attention function, or masks silently become None and
padding is attended to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from quantkv.attention import KVHandle, attend
from quantkv.cache import ASKED_FOR_MASK, QuantizedCache, cache_argument
from quantkv.errors import UnsupportedError
from quantkv.spec import CacheSpec
from quantkv.spec_text import parse_spec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATION = "quantkv"
_REFUSED = ("indices", "block_indices", "sinks")


class Simulator(Protocol):
    """A decode-exact pass in progress: it computes attention itself where a layer would be quantized."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor | None: ...

    def begin_call(self, padding: Tensor | None, seen: int) -> None: ...


SIMULATION: ContextVar[Simulator | None] = ContextVar("quantkv_simulation", default=None)


def register() -> None:
    """Make `attn_implementation="quantkv"` known to transformers; calling it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, quantkv_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, quantkv_mask)


def quantkv_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' sdpa mask (bool, True = attend, None = plain causal); tells a cache its left padding."""
    padding, simulation = kwargs.get("attention_mask"), SIMULATION.get()
    if simulation is not None:
        simulation.begin_call(padding if _is_padding(padding) else None, int(kwargs.get("q_offset", 0)))
    asked = ASKED_FOR_MASK.get()
    cache = asked() if asked is not None else None
    if cache is not None and _is_padding(padding) and cache.awaits_padding:
        cache.set_padding(leading_zeros(padding))
    return sdpa_mask(*args, **kwargs)


def _is_padding(mask: Any) -> TypeGuard[Tensor]:
    return isinstance(mask, Tensor) and mask.dim() == 2


def leading_zeros(mask: Tensor) -> list[int]:
    """How many leading positions of each row of a 2-D mask are padding."""
    return (mask.bool().cumsum(-1) == 0).sum(-1).tolist()


def quantkv_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over handles without decoding the history; everything else goes to sdpa or the reference
    engine."""
    _refuse(kwargs)
    asked = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    options: dict[str, Any] = {
        "mask": attention_mask, "causal": asked and attention_mask is None,
        "scaling": scaling, "softcap": softcap, "sink_logits": s_aux,
    }  # fmt: skip
    out = _simulated(module, query, key, value, options, position_bias) if asked else None
    if out is None and isinstance(key, KVHandle) and isinstance(value, KVHandle) and position_bias is None:
        out = attend(query, key.kv, value.kv, **options)
    if out is None and softcap is None and s_aux is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
            position_bias=position_bias, **kwargs,
        )  # fmt: skip
    if out is None:
        out = attend(query, PlainReadable(key), PlainReadable(value), **options)
    return out.transpose(1, 2).contiguous(), None


def _refuse(arguments: dict[str, Any]) -> None:
    for name in _REFUSED:
        if arguments.get(name) is not None:
            raise UnsupportedError(
                f"attn_implementation='quantkv' does not know the attention argument {name!r}; use 'eager'"
            )


def _simulated(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: dict[str, Any],
    position_bias: Tensor | None,
) -> Tensor | None:
    """What a decode-exact pass makes of a causal layer; None where none runs or it leaves the layer alone."""
    simulation, layer = SIMULATION.get(), getattr(module, "layer_idx", None)
    if simulation is None or not isinstance(layer, int):
        return None
    if position_bias is not None:
        raise UnsupportedError("simulate() does not know the attention argument 'position_bias'")
    return simulation.attend(layer, query, key, value, **options)


class PlainReadable:
    """An ordinary `[B, H, T, D]` tensor behind the engine's reading interface."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return tuple(self._x.shape)  # type: ignore[return-value]

    def read(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        return self._x[:, :, start:stop].to(dtype or self._x.dtype)

    def edges(self) -> list[int]:
        return sorted({*range(0, self._x.shape[2], 2048), self._x.shape[2]})


@contextmanager
def fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """Switch a model to `attn_implementation="quantkv"` and back at the end."""
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def use(model: PreTrainedModel, spec: str | CacheSpec) -> Iterator[PreTrainedModel]:
    """Inside, every `generate` (and every pipeline that calls it) gets a fresh `QuantizedCache` and the
    fused attention.

    A cache passed by hand is left alone. Everything is undone at the end.
    """
    spec = parse_spec(spec)
    QuantizedCache(model.config, spec)  # fails here, before anything is changed
    before, generate, names = vars(model).get("generate"), model.generate, ("cache", "past_key_values")

    def with_cache(*args: Any, **kwargs: Any) -> Any:
        if all(kwargs.get(name) is None for name in names):
            kwargs[cache_argument(model)] = QuantizedCache(model.config, spec)
        return generate(*args, **kwargs)

    with fused_attention(model):
        model.generate = with_cache
        try:
            yield model
        finally:
            if before is None:
                del model.generate
            else:  # inside another `use`
                model.generate = before
