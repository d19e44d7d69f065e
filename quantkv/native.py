"""The native CPU engine: whether it is here, which build of it runs, and how a page's layout is told to it.

`QUANTKV_NATIVE=0` leaves it alone; `QUANTKV_ISA=v2|v3|v4` picks a build other than the best that the
processor can run.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from quantkv.errors import QuantKVError

if TYPE_CHECKING:
    from quantkv.codecs import Codec, Kernel
    from quantkv.store import PageLayout

FLOATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Dtypes that the kernels read and write, by the numbers they know them by."""
_OFF = ("0", "false", "off")


@cache
def kernels() -> Any:
    """The module of kernels, or None (said once) where it is switched off or was not built."""
    if os.environ.get("QUANTKV_NATIVE", "1").lower() in _OFF:
        return None
    try:
        return import_module("quantkv._native")
    except ImportError as error:
        warnings.warn(
            f"quantkv's native engine is not there ({error}): attention runs on the PyTorch engine, which is "
            "slower than fp16. Install quantkv where a C++17 compiler is found, or set QUANTKV_NATIVE=0.",
            stacklevel=2,
        )
        return None


@cache
def isa() -> str | None:
    """The build that runs: `v2`, `v3`, `v4` of x86-64, or `base` elsewhere; None without the engine."""
    module = kernels()
    if module is None:
        return None
    usable, wanted = module.usable_isas(), os.environ.get("QUANTKV_ISA")
    if wanted is None:
        return usable[-1]
    if wanted not in usable:
        raise QuantKVError(
            f"QUANTKV_ISA={wanted}: not built or not on this machine; legal: {', '.join(usable)}"
        )
    return wanted


def page_format(layout: PageLayout, codec: Codec) -> Any:
    """The layout as kernels know it, or None where there are none for this codec or these dtypes."""
    module, kernel = kernels(), codec.kernel()
    if module is None or kernel is None:
        return None
    elements = layout.fields[0]
    metadata = next((f.dtype for f in layout.fields if f.name == "scale"), torch.float16)
    if metadata not in FLOATS or (kernel.number == "raw" and elements.dtype not in FLOATS):
        return None
    planes = [(p.bits, p.offset, p.head_bytes) for p in layout.planes[elements.name]]
    raw = {"value": _name(elements.dtype)} if kernel.number == "raw" else {}
    return module.Format(
        lanes_are_tokens=layout.lanes == "tokens",
        heads=layout.num_heads,
        head_dim=layout.head_dim,
        page_tokens=layout.page_tokens,
        code=kernel.number,
        planes=planes,
        meta=_name(metadata),
        outward=kernel.outward,
        table=list(kernel.table),
        **raw,
        **_scales(layout, kernel),
    )


def _scales(layout: PageLayout, kernel: Kernel) -> dict[str, Any]:
    sharing = kernel.sharing
    if sharing is None:
        return {}
    return {
        "has_scale": True,
        "has_zero": kernel.has_zero,
        "centre": kernel.centre,
        "unit": kernel.unit,
        "scale_at": layout.offsets["scale"],
        "zero_at": layout.offsets.get("zero", 0),
        "share_tokens": sharing.tokens,
        "share_channels": sharing.channels or layout.head_dim,
        "all_heads": sharing.all_heads,
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
