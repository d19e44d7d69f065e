"""The native engine: one call that reads pages, sinks and tail where they lie (`native/src/attend.h`)."""

from __future__ import annotations

import torch
from torch import Tensor

from quantkv import native
from quantkv.attention.inputs import AttentionOptions
from quantkv.errors import QuantKVError
from quantkv.store import View

MOST_QUERIES = 16
"""Longer calls decode a span at a time into scratch and multiply matrices instead."""
_NO_STRIDES: list[int] = []


def attend(query: Tensor, key: View, value: View, options: AttentionOptions) -> Tensor | None:
    """Attention of `query` `[B, Hq, Q, D]`, as `[B, Hq, Q, Dv]`; None where no kernel serves this call."""
    _, q_heads, queries, head_dim = query.shape
    served = query.dtype in native.FLOATS and key.has_kernels and value.has_kernels
    if queries > MOST_QUERIES or not served:
        return None
    key.check()
    value.check()
    _check(query, key)
    query = query if query.stride(-1) == 1 else query.contiguous()
    mask, is_bool, mask_strides = _mask(options.mask, query, key.stop - key.start)
    sinks = None if options.sink_logits is None else options.sink_logits.float().contiguous()
    out = torch.empty(query.shape[0], queries, q_heads, value.shape[-1], dtype=query.dtype)
    native.kernels().attend(
        key.pages.kernel_pages(), _exact(key), value.pages.kernel_pages(), _exact(value),
        key.pads, key.start, key.stop, query.data_ptr(), native.FLOATS[query.dtype], query.stride()[:3],
        q_heads, queries, options.scale(head_dim), options.softcap or 0.0, options.causal,
        0 if mask is None else mask.data_ptr(), is_bool, mask_strides,
        0 if sinks is None else sinks.data_ptr(), out.data_ptr(), torch.get_num_threads(), native.isa(),
    )  # fmt: skip
    return out.transpose(1, 2)


def _check(query: Tensor, keys: View) -> None:
    """Raise where kernels would read beyond a tensor, or lose a gradient without a word."""
    rows, heads, _, head_dim = keys.shape
    if query.shape[0] != rows or query.shape[1] % heads or query.shape[3] != head_dim or not query.is_cpu:
        raise QuantKVError(
            f"a query of {list(query.shape)} on {query.device} does not fit keys of {rows} rows, "
            f"{heads} heads and {head_dim} channels on cpu"
        )
    if query.requires_grad and torch.is_grad_enabled():
        raise QuantKVError("a quantized cache carries no gradients: run under torch.no_grad()")


def _exact(view: View) -> tuple[list[int], int, int, int, int, int, int, int, tuple[int, ...]]:
    """Where a view's exact tokens lie, in the order that the kernel's binding names."""
    sinks, ring, extra = view.sinks, view.ring, view.extra
    if extra is not None and extra.stride(-1) != 1:
        extra = view.extra = extra.contiguous()
    return (
        view.visible, native.FLOATS[view.dtype], sinks.buffer.data_ptr(), sinks.capacity,
        ring.buffer.data_ptr(), ring.capacity, 0 if extra is None else extra.data_ptr(), view.extra_from,
        (0, 0, 0) if extra is None else extra.stride()[:3],
    )  # fmt: skip


def _mask(mask: Tensor | None, query: Tensor, stop: int) -> tuple[Tensor | None, bool, list[int]]:
    """The mask as bool or float32, whether it is bool, and its strides over `[B, Hq, Q, T]`."""
    if mask is None:
        return None, True, _NO_STRIDES
    if mask.dtype != torch.bool:
        mask = mask.float()
    strides = [0 if size == 1 else stride for size, stride in zip(mask.shape[:3], mask.stride()[:3])]
    legal = {1, query.shape[0]}, {1, query.shape[1]}, {1, query.shape[2]}
    if mask.shape[-1] < stop or any(size not in sizes for size, sizes in zip(mask.shape, legal)):
        raise QuantKVError(
            f"a mask of {list(mask.shape)} does not cover {list(query.shape[:3])} queries and {stop} keys"
        )
    return mask, mask.dtype == torch.bool, [*strides, mask.stride(3)]
