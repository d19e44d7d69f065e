"""Left padding of the rows of a batch: from the 2-D mask that a model makes, or from position ids that can
mean nothing else.

A model asks its cache how large a mask must be, and then transformers makes the mask, under any attention
implementation. So the cache that was asked last is the one that the next mask is for.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor
from transformers import AttentionMaskInterface

from quantkv.cache.names import IMPLEMENTATION


class PaddedCache(Protocol):
    """What a mask may say its padding to: a `QuantizedCache`."""

    config: Any

    @property
    def awaits_padding(self) -> bool: ...

    def set_padding(self, pads: list[int]) -> None: ...

    def get_seq_length(self) -> int: ...


ASKED_FOR_MASK: ContextVar[weakref.ref[PaddedCache] | None] = ContextVar("quantkv_cache", default=None)
"""The cache whose `get_mask_sizes` ran last: the next mask function tells it the rows' left padding."""

LENGTH_READ: ContextVar[weakref.ref[PaddedCache] | None] = ContextVar("quantkv_length", default=None)
"""The cache whose length was read last: a mask made for another then may mean that the model put it aside."""


def have_masks_tell() -> None:
    """Have the masks of all implementations tell a quantized cache its padding; once is enough."""
    for name, make in AttentionMaskInterface().items():
        if name != IMPLEMENTATION and not isinstance(make, _Telling):
            AttentionMaskInterface.register(name, _Telling(make))


class _Telling:
    """A mask function of transformers, which also tells the cache that asked for it its left padding."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # a compiled model holds no quantized cache
            tell_cache(kwargs)
        return self.make(*args, **kwargs)


def tell_cache(arguments: dict[str, Any]) -> None:
    """Tell the cache that a mask with these arguments is for what they say of padding."""
    asked, read = _alive(ASKED_FOR_MASK), _alive(LENGTH_READ)
    padding = arguments.get("attention_mask")
    if asked is None and read is not None:
        _warn_if_put_aside(read, arguments)
    elif asked is not None and is_padding(padding) and asked.awaits_padding:
        asked.set_padding(leading_zeros(padding))
    for variable in (ASKED_FOR_MASK, LENGTH_READ):  # the next mask may be another cache's
        variable.set(None)


def _alive(variable: ContextVar[weakref.ref[PaddedCache] | None]) -> PaddedCache | None:
    reference = variable.get()
    return None if reference is None else reference()


def _warn_if_put_aside(cache: PaddedCache, arguments: dict[str, Any]) -> None:
    """Warn where a model leaves out the cache of `generate`: Phi-3 does, with a new position embedding."""
    config, queries = arguments.get("config"), int(arguments.get("q_length", 0))
    limit = getattr(config, "original_max_position_embeddings", None)
    if limit is None or config is not cache.config or not getattr(cache, "_is_user_defined", False):
        return
    if (length := cache.get_seq_length()) <= limit < queries:
        warnings.warn(
            f"{config.model_type} takes another position embedding beyond {limit} tokens: it leaves "
            f"the quantized cache at {length} tokens and goes on with a plain DynamicCache; inside "
            "quantkv.use(model, format) the quantized cache is filled anew",
            stacklevel=3,
        )


def is_padding(mask: Any) -> TypeGuard[Tensor]:
    return isinstance(mask, Tensor) and mask.dim() == 2


def leading_zeros(mask: Tensor) -> list[int]:
    """How many leading positions of each row of a 2-D mask are padding."""
    return (mask.bool().cumsum(-1) == 0).sum(-1).tolist()


def counted_padding(positions: Any, rows: int, length: int) -> list[int] | None:
    """Leading padding of each row, from position ids `[rows or 1, length]`: a constant for padding, then
    0, 1, 2, … to the end.

    None where there are no such ids, or a row's do anything else: they restart (packed sequences), jump
    (branches of a tree), begin elsewhere, or never count, so that nothing tells padding from a first token.
    """
    if not isinstance(positions, Tensor) or tuple(positions.shape) not in ((1, length), (rows, length)):
        return None
    pads = length - 1 - positions[:, -1:]
    expected = torch.arange(length, device=positions.device) - pads
    constant = (positions == positions[:, :1]) & (positions.abs() <= 1)
    fits = torch.where(expected >= 0, positions == expected, constant)
    tells = (pads == 0) | ((pads > 0) & (pads < length - 1))
    return pads.expand(rows, 1).flatten().tolist() if bool(fits.all() and tells.all()) else None
