"""Named specs. A preset is either a pair of tensor texts with the usual policy, or a published scheme with
its own.

`int8-head` and `int4-head` share a scale per token and head; `int8-channel` shares per channel for keys and
values; `int4-channel` per channel for keys and per token and head for values.
"""

from __future__ import annotations

from functools import cache
from inspect import cleandoc
from typing import Any

from quantkv.spec.specs import CacheSpec, TensorSpec

PUBLISHED = frozenset({"kivi-4", "kivi-2"})
"""Presets whose sinks, window and flush rules belong to the scheme: a sweep's policy leaves them alone."""


@cache
def tensor_texts() -> dict[str, tuple[str, str]]:
    """Preset name to the texts of its key and value tensors, for presets with the usual policy."""
    both = {
        name: (name, name) for name in ("fp32", "fp16", "bf16", "exact", "int8-head", "int4-head", "fp8-e4m3")
    }
    return both | {
        "int8-channel": ("int8-channel@g32", "int8-channel@g32"),
        "int4-channel": ("int4-channel@g32", "int4-head"),
        "k8v4": ("int8-head", "int4-head"),
        "int8-g32": ("int8-token@g32", "int8-token@g32"),
        "int4-g32": ("int4-token@g32", "int4-token@g32"),
    }


def _kivi(codec: str) -> CacheSpec:
    """KIVI (Liu et al. 2024, arXiv 2402.02750): keys per channel over 32 tokens, flushed 128 at a time;
    values per token over 32 channels, flushed one by one behind a window of 128; no sinks; metadata rounded
    to nearest float16."""
    common: dict[str, Any] = {"codec": codec, "group": 32, "outward": False}
    return CacheSpec(
        key=TensorSpec(sharing="channel", recent=0, flush=128, **common),
        value=TensorSpec(sharing="token", recent=128, flush=1, **common),
        sinks=0,
    )


@cache
def presets() -> dict[str, CacheSpec]:
    """All presets by name, in the order tables show them."""
    from quantkv.spec.text import parse_spec

    usual = {name: parse_spec(f"k.{k}+v.{v}") for name, (k, v) in tensor_texts().items()}
    return usual | {"kivi-4": _kivi("int4"), "kivi-2": _kivi("int2")}


def scheme_of(name: str) -> str:
    """The published scheme that a preset follows, with its paper; empty for presets with the usual policy."""
    return cleandoc(_kivi.__doc__ or "") if name in PUBLISHED else ""
