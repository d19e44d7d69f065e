"""How a page's layout is told to the native kernels."""

from __future__ import annotations

from typing import Any

import torch

from quantkv.codecs import Codec, Kernel
from quantkv.native import FLOATS, kernels
from quantkv.store.layout import PageLayout


def page_format(layout: PageLayout, codec: Codec) -> Any:
    """The layout as kernels know it, or None where there are none for this codec or these dtypes."""
    module, kernel = kernels(), codec.kernel()
    if module is None or kernel is None:
        return None
    elements = layout.fields[0]
    metadata = next((f.dtype for f in layout.fields if f.name == "scale"), torch.float16)
    if metadata not in FLOATS or (kernel.number == "raw" and elements.dtype not in FLOATS):
        return None
    raw = {"value": _name(elements.dtype)} if kernel.number == "raw" else {}
    return module.Format(
        lanes_are_tokens=layout.lanes == "tokens",
        heads=layout.num_heads,
        head_dim=layout.head_dim,
        page_tokens=layout.page_tokens,
        code=kernel.number,
        planes=[(p.bits, p.offset, p.head_bytes) for p in layout.planes[elements.name]],
        meta=_name(metadata),
        outward=kernel.outward,
        table=list(kernel.table),
        **raw,
        **_scales(layout, kernel),
    )


def _scales(layout: PageLayout, kernel: Kernel) -> dict[str, Any]:
    """Where scales and zeros lie, and which elements share one."""
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
