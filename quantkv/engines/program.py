"""A method's declaration as the native kernels know it."""

from __future__ import annotations

from typing import Any

import torch

from quantkv.codecs import Affine, Codes, Float8, Plain, Sharing, Stored, Table
from quantkv.engines import native
from quantkv.engines.native import FLOATS
from quantkv.store import PageLayout


def refusal(stored: Stored) -> str | None:
    """What of a method the kernels cannot read, in half a sentence."""
    if stored.steps:
        return "no native kernels for maps"
    codes = stored.terms[0]
    if len(stored.terms) > 1 or not isinstance(codes, Codes):
        return "no native kernels for several terms"
    if len(codes.scales) > 1:
        return "no native kernels for products of scales"
    if codes.zero is not None and (not codes.scales or codes.zero.sharing != codes.scales[0].sharing):
        return "no native kernels for a zero that is shared otherwise than its scale"
    dtypes = {field.dtype for field in stored.fields if field.dtype.is_floating_point}
    if unknown := dtypes - FLOATS.keys():
        return f"no native kernels for {', '.join(map(str, unknown))}"
    return None


def page_format(stored: Stored, layout: PageLayout) -> Any:
    """The kernels' own record of a format that they do not refuse."""
    (codes,) = stored.terms
    assert isinstance(codes, Codes)
    fields = {field.name: field for field in stored.fields}
    scale, number = codes.scales[0] if codes.scales else None, codes.number
    sharing = scale.sharing if scale else Sharing()
    plain = isinstance(number, Plain)
    metadata = fields[scale.field].dtype if scale else torch.float16
    return native.kernels().Format(
        lanes_are_tokens=layout.lanes == "tokens", page_tokens=layout.page_tokens,
        heads=layout.num_heads, head_dim=layout.head_dim,
        planes=[(p.bits, p.offset, p.head_bytes) for p in layout.planes[codes.field]],
        code=_code(number), centre=number.centre if isinstance(number, Affine) else 0.0,
        unit=scale.unit if scale else 1.0, outward=stored.codec.rule != "nearest",
        table=list(number.values) if isinstance(number, Table) else [],
        value=_name(fields[codes.field].dtype if plain else torch.float32),
        has_scale=scale is not None, scale_at=layout.offsets[scale.field] if scale else 0,
        meta=_name(metadata),
        has_zero=codes.zero is not None, zero_at=layout.offsets[codes.zero.field] if codes.zero else 0,
        share_tokens=sharing.tokens, share_channels=sharing.channels or layout.head_dim,
        all_heads=sharing.all_heads,
    )  # fmt: skip


def _code(number: Any) -> str:
    names = {Affine: "affine", Table: "table", Plain: "raw"}
    return number.kind if isinstance(number, Float8) else names[type(number)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
