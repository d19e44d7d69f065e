"""A method's declaration as the native kernels know it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from quantkv.codecs import (
    Affine,
    Codes,
    Field,
    Float8,
    LowRank,
    Plain,
    Rope,
    Scale,
    Sharing,
    Sparse,
    Stored,
    Table,
)
from quantkv.codecs.steps import Hadamard, Matrix, Shift, Step, Stretch, TokenScale
from quantkv.engines import native
from quantkv.engines.native import FLOATS
from quantkv.store import PageLayout

SHARED = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint8")
"""Dtypes of numbers that elements share; uint8 are codes that count."""


def refusal(stored: Stored) -> str | None:
    """What of a method the kernels cannot read, in half a sentence."""
    fields = {field.name: field for field in stored.fields}
    for term in stored.terms:
        reason = _codes_refusal(term, fields) if isinstance(term, Codes) else _plain_refusal(term, fields)
        if reason:
            return reason
    if not any(isinstance(term, Codes) for term in stored.terms):
        return "no native kernels for a method without codes"
    return next(filter(None, (_step_refusal(step, stored, fields) for step in stored.steps)), None)


def _codes_refusal(term: Codes, fields: dict[str, Field]) -> str | None:
    elements = fields[term.field]
    if isinstance(term.number, Plain):
        if elements.dtype not in FLOATS:
            return f"no native kernels for {elements.dtype}"
        if term.scales or term.zero:
            return "no native kernels for floats with scales"
    elif elements.bits is None and elements.dtype.itemsize != 1:
        return f"no native kernels for codes of {elements.dtype}"
    for scale in _factors(term):
        if _name(fields[scale.field].dtype) not in SHARED:
            return f"no native kernels for scales of {fields[scale.field].dtype}"
    return None


def _plain_refusal(term: Sparse | LowRank, fields: dict[str, Field]) -> str | None:
    names = (term.value,) if isinstance(term, Sparse) else (term.left, term.right)
    for name in names:
        if fields[name].dtype not in FLOATS:
            return f"no native kernels for {name!r} of {fields[name].dtype}"
    if isinstance(term, Sparse) and fields[term.index].bits not in (None, 8):
        return f"no native kernels for indices of {fields[term.index].bits} bits"
    return None


def _step_refusal(step: Step, stored: Stored, fields: dict[str, Field]) -> str | None:
    if isinstance(step, TokenScale) and _name(fields[step.name].dtype) not in SHARED:
        return f"no native kernels for scales of {fields[step.name].dtype}"
    return None


def page_format(stored: Stored, layout: PageLayout) -> Any:
    """The kernels' own record of a method that they do not refuse."""
    module, fields = native.kernels(), {field.name: field for field in stored.fields}
    at = layout.offsets
    sparse = [
        module.Sparse(
            slots=fields[term.value].width, index_at=at[term.index], value_at=at[term.value],
            dtype=_name(fields[term.value].dtype),
        )
        for term in stored.terms if isinstance(term, Sparse)
    ]  # fmt: skip
    low_rank = [
        module.LowRank(
            rank=fields[term.left].width, tokens=fields[term.right].tokens,
            left_at=at[term.left], right_at=at[term.right],
            left=_name(fields[term.left].dtype), right=_name(fields[term.right].dtype),
        )
        for term in stored.terms if isinstance(term, LowRank)
    ]  # fmt: skip
    return module.Method(
        [_codes(stored, layout, term) for term in stored.terms if isinstance(term, Codes)],
        head_dim=layout.head_dim, sparse=sparse, low_rank=low_rank,
        steps=[_step(step, stored, layout, fields) for step in stored.steps],
    )  # fmt: skip


def state_names(stored: Stored) -> list[str]:
    """The states of rows that steps name, in the order in which the kernels number them."""
    return list(dict.fromkeys(step.name for step in stored.steps if isinstance(step, Shift | Stretch)))


def _codes(stored: Stored, layout: PageLayout, term: Codes) -> Any:
    fields, number = {field.name: field for field in stored.fields}, term.number
    elements, plain = fields[term.field], isinstance(number, Plain)
    simple = _is_simple(term, fields)
    sharing = _finest(term, elements.width)
    scale = term.scales[0] if simple and term.scales else None
    return native.kernels().Format(
        lanes_are_tokens=layout.lanes == "tokens", page_tokens=layout.page_tokens,
        heads=layout.num_heads, head_dim=elements.width, first=term.first,
        planes=[(p.bits, p.offset, p.head_bytes) for p in layout.planes[term.field]],
        code=_code(number), centre=number.centre if isinstance(number, Affine) else 0.0,
        unit=scale.unit if scale else 1.0, outward=stored.codec.rule != "nearest",
        table=list(number.values) if isinstance(number, Table) else [],
        value=_name(elements.dtype if plain else torch.float32),
        has_scale=scale is not None, scale_at=layout.offsets[scale.field] if scale else 0,
        meta=_name(fields[scale.field].dtype) if scale else "float16",
        has_zero=simple and term.zero is not None,
        zero_at=layout.offsets[term.zero.field] if simple and term.zero else 0,
        share_tokens=sharing.tokens, share_channels=sharing.channels or elements.width,
        all_heads=sharing.all_heads,
        followed=_followed(layout, term), derived=not simple,
        factors=[] if simple else [_factor(s, layout, fields, elements.width) for s in term.scales],
        own_zero=_factor(term.zero, layout, fields, elements.width) if term.zero and not simple else None,
    )  # fmt: skip


def _followed(layout: PageLayout, term: Codes) -> bool:
    """Whether loaders may read a few bytes behind any plane."""
    ends = (plane.offset + layout.num_heads * plane.head_bytes for plane in layout.planes[term.field])
    return all(end < layout.record_bytes for end in ends)


def _factors(term: Codes) -> list[Scale]:
    return [*term.scales, *([term.zero] if term.zero else [])]


def _is_simple(term: Codes, fields: dict[str, Field]) -> bool:
    """Whether there is at most one scale, of a float dtype, and a zero like it."""
    dtypes = {fields[factor.field].dtype for factor in _factors(term)}
    centred = isinstance(term.number, Affine) and term.number.centre != 0
    if len(term.scales) > 1 or len(dtypes) > 1 or not dtypes <= FLOATS.keys():
        return False
    if term.zero is None:
        return bool(term.scales) or not centred
    alike = term.scales and term.zero.sharing == term.scales[0].sharing and term.zero.unit == 1.0
    return bool(alike) and not centred


def _finest(term: Codes, width: int) -> Sharing:
    """The largest blocks within which no factor changes."""
    sharings = [factor.sharing for factor in _factors(term)] or [Sharing()]
    return Sharing(
        math.gcd(*(sharing.tokens for sharing in sharings)),
        math.gcd(*(sharing.channels or width for sharing in sharings)),
        all(sharing.all_heads for sharing in sharings),
    )


def _factor(scale: Scale, layout: PageLayout, fields: dict[str, Field], width: int) -> Any:
    field, sharing = fields[scale.field], scale.sharing
    return native.kernels().Factor(
        dtype=_name(field.dtype), at=layout.offsets[scale.field], share_tokens=sharing.tokens,
        share_channels=sharing.channels or width, all_heads=sharing.all_heads, unit=scale.unit,
        bits=field.bits or 8,
    )  # fmt: skip


def _step(step: Step, stored: Stored, layout: PageLayout, fields: dict[str, Field]) -> Any:
    make = native.kernels().Step
    if isinstance(step, Hadamard):
        return make("hadamard", block=step.block)
    if isinstance(step, Matrix):
        return make("matrix", matrix=stored.place.constants[step.name].float().flatten().tolist())
    if isinstance(step, Shift | Stretch):
        kind = "shift" if isinstance(step, Shift) else "stretch"
        return make(kind, state=state_names(stored).index(step.name))
    if isinstance(step, TokenScale):
        scale = Scale(step.name, Sharing(all_heads=fields[step.name].heads == 1))
        return make("token_scale", scale=_factor(scale, layout, fields, 1))
    return make("turn", angles=_angles(step.rope))


@cache
def _angles(rope: Rope) -> Any:
    """One table for all layers that turn alike."""
    return native.kernels().Angles(list(rope.frequencies), rope.interleaved)


def _code(number: Any) -> str:
    names = {Affine: "affine", Table: "table", Plain: "raw"}
    return number.kind if isinstance(number, Float8) else names[type(number)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
