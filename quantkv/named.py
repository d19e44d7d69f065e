"""Formats that have a name of their own, as texts: pairs of tensors with the usual policy, and published
schemes with the policy that belongs to them.

`int8-head` and `int4-head` share a scale per token and head; `int8-channel` shares per channel for keys and
values; `int4-channel` per channel for keys and per token and head for values. Light: it loads nothing.
"""

from __future__ import annotations

from inspect import cleandoc

_ALIKE = ("fp32", "fp16", "bf16", "exact", "int8-head", "int4-head", "fp8-e4m3")
TENSOR_TEXTS = {name: (name, name) for name in _ALIKE} | {
    "int8-channel": ("int8-channel@g32", "int8-channel@g32"),
    "int4-channel": ("int4-channel@g32", "int4-head"),
    "k8v4": ("int8-head", "int4-head"),
    "int8-g32": ("int8-token@g32", "int8-token@g32"),
    "int4-g32": ("int4-token@g32", "int4-token@g32"),
}
"""Name to the texts of its key and value tensors, for formats with the usual policy."""


def _kivi(codec: str) -> str:
    """KIVI (Liu et al. 2024, arXiv 2402.02750): keys per channel over 32 tokens, flushed 128 at a time;
    values per token over 32 channels, flushed one by one behind a window of 128; no sinks; metadata rounded
    to nearest float16."""
    return f"k.{codec}-channel@g32.near+r0+f128+v.{codec}-token@g32.near+r128+f1+s0"


PUBLISHED = {"kivi-4": _kivi("int4"), "kivi-2": _kivi("int2")}
"""Formats whose sinks, window and flush rules belong to the scheme: a sweep's policy leaves them alone."""
NAMES = (*TENSOR_TEXTS, *PUBLISHED)
"""In the order that tables show them."""


def scheme_of(name: str) -> str:
    """The published scheme that a name stands for, with its paper; empty for the usual policy."""
    return cleandoc(_kivi.__doc__ or "") if name in PUBLISHED else ""
