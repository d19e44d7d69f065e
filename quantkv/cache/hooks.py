"""What transformers calls: the attention and mask functions registered as `"quantkv"`.

The mask function must be registered beside the attention function, or masks silently become None and
padding is attended to. The mask functions of other attention implementations go on as they are; they only
tell a quantized cache its left padding on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from quantkv.cache.names import IMPLEMENTATION
from quantkv.cache.padding import have_masks_tell, is_padding, tell_cache
from quantkv.engines import AttentionOptions, KVHandle, PlainReadable, attend
from quantkv.errors import QuantKVError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

try:
    from transformers.utils.output_capturing import _active_collector as _COLLECTOR
except ImportError:  # releases whose models hand `output_attentions` on to their attention
    _COLLECTOR = None
_REFUSED = (
    "indices", "block_indices", "sinks", "head_mask", "layer_head_mask", "cu_seq_lens_q", "cu_seq_lens_k",
)  # fmt: skip
"""Attention arguments that would change the result."""


class Simulator(Protocol):
    """A decode-exact pass in progress: it computes attention itself where a layer would be quantized."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: AttentionOptions,
        told: Tensor | None,
    ) -> Tensor | None: ...

    def begin_call(self, padding: Tensor | None, seen: int) -> None: ...


SIMULATION: ContextVar[Simulator | None] = ContextVar("quantkv_simulation", default=None)


def register() -> None:
    """Make `attn_implementation="quantkv"` known to transformers, and have the masks of all implementations
    tell a quantized cache its padding; calling it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, quantkv_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, quantkv_mask)
    have_masks_tell()


def quantkv_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' sdpa mask (bool, True = attend, None = plain causal); tells a cache, and a pass in
    progress, the rows' left padding."""
    padding, simulation = kwargs.get("attention_mask"), SIMULATION.get()
    if simulation is not None:
        simulation.begin_call(padding if is_padding(padding) else None, int(kwargs.get("q_offset", 0)))
    tell_cache(kwargs)
    return sdpa_mask(*args, **kwargs)


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
    """Attention over handles without decoding the history; sdpa or the reference engine do the rest."""
    _refuse(module, kwargs)
    asked = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = asked and attention_mask is None
    options = AttentionOptions(attention_mask, causal, scaling, softcap, s_aux)
    packed = isinstance(key, KVHandle) and isinstance(value, KVHandle) and position_bias is None
    plain = not packed and softcap is None and s_aux is None
    if not plain or (asked and SIMULATION.get() is not None):
        _check(query, key, attention_mask, dropout, position_bias)
    told = kwargs.get("position_ids")
    out = _simulated(module, query, key, value, options, told) if asked else None
    if out is None and plain:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
            position_bias=position_bias, **kwargs,
        )  # fmt: skip
    if out is None:
        pair: tuple[Any, Any] = (key, value)
        keys, values = (x.kv if packed else PlainReadable(x) for x in pair)
        out = attend(query, keys, values, options)
    return out.transpose(1, 2).contiguous(), None


def _refuse(module: torch.nn.Module, arguments: dict[str, Any]) -> None:
    for name in _REFUSED:
        if arguments.get(name) is not None:
            raise UnsupportedError(
                f"attn_implementation='quantkv' does not know the attention argument {name!r}; use 'eager'"
            )
    if arguments.get("output_attentions") or _weights_are_collected(module):
        raise UnsupportedError(
            "attn_implementation='quantkv' gives no attention weights (output_attentions=True); "
            "use model.set_attn_implementation('eager')"
        )


def _weights_are_collected(module: torch.nn.Module) -> bool:
    """Whether the model was asked for attention weights, which most do not say to their attention."""
    if getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    collected = None if _COLLECTOR is None else _COLLECTOR.get()
    return any(name.endswith("attentions") for name in collected or ())


def _check(
    query: Tensor, key: Tensor, mask: Tensor | None, dropout: float, position_bias: Tensor | None
) -> None:
    """Raise where the engines would leave out an argument or read a mask for what it is not."""
    if dropout or position_bias is not None:
        name = "dropout (call model.eval())" if dropout else "'position_bias' here"
        raise UnsupportedError(f"attn_implementation='quantkv' does not compute {name}")
    if mask is None:
        return
    wanted = f"[{query.shape[0]} or 1, {query.shape[1]} or 1, {query.shape[2]}, {key.shape[2]}]"
    shape, (rows, heads, queries, _) = tuple(mask.shape), query.shape
    fits = len(shape) == 4 and shape[0] in (1, rows) and shape[1] in (1, heads)
    if not fits or shape[2] not in (1, queries) or shape[3] != key.shape[2]:
        raise QuantKVError(f"a mask of {list(shape)} does not fit; legal: {wanted}, bool or additive floats")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise QuantKVError(f"a mask of {mask.dtype}; legal: bool (True = attend) or additive floats")


def _simulated(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: AttentionOptions,
    told: Tensor | None,
) -> Tensor | None:
    """What a decode-exact pass makes of a causal layer; None where none runs or it leaves the layer alone.
    `told` are the position ids that a cache's update would be told."""
    simulation, layer = SIMULATION.get(), getattr(module, "layer_idx", None)
    if simulation is None or not isinstance(layer, int):
        return None
    return simulation.attend(layer, query, key, value, options, told)


@contextmanager
def fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """Switch a model to `attn_implementation="quantkv"` and back at the end."""
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
