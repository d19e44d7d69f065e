"""Whether what a codec declares fits together: terms over fields that are there, shared as they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quantkv.codecs.fields import Field
from quantkv.codecs.place import Place
from quantkv.codecs.terms import Codes, Float8, LowRank, Scale, Sparse, Table, Term
from quantkv.errors import QuantKVError

MOST_CHANNELS = 256
"""A byte can tell so many apart."""


def check_declared(place: Place, fields: Sequence[Field], terms: Sequence[Term], group_tokens: int) -> None:
    """Raise QuantKVError where numbers would be read from other elements than the fields hold."""
    named = {field.name: field for field in fields}
    if len(named) < len(fields):
        raise QuantKVError(f"two fields of one name: {', '.join(field.name for field in fields)}")
    for field in fields:
        if group_tokens % field.tokens:
            raise QuantKVError(
                f"{field.tokens} tokens share an entry of {field.name!r}, but {group_tokens} are encoded "
                "together: group_tokens must be a multiple"
            )
    if not isinstance(terms, tuple) or not terms or not all(isinstance(term, Term) for term in terms):
        raise QuantKVError(f"a codec's terms are a tuple of Codes, Sparse and LowRank, not {terms!r}")
    for term in terms:
        if isinstance(term, Codes):
            _check_codes(place, named, term)
        elif isinstance(term, Sparse):
            _check_sparse(place, named, term)
        else:
            _check_low_rank(place, named, term)


def check_made(fields: Sequence[Field], made: Mapping[str, Tensor], given: torch.Size) -> None:
    """Raise QuantKVError where what an encoder made of a tensor `[N, H, T, D]` is not what is declared."""
    if not isinstance(made, Mapping) or set(made) != {field.name for field in fields}:
        names = ", ".join(made) if isinstance(made, Mapping) else repr(made)
        raise QuantKVError(f"encode made {names or 'nothing'}; declared: {', '.join(f.name for f in fields)}")
    for field in fields:
        x, wanted = made[field.name], (given[0], field.heads, given[2] // field.tokens, field.width)
        if tuple(x.shape) != wanted or x.dtype != field.dtype:
            raise QuantKVError(
                f"encode made {field.name!r} as {list(x.shape)} of {x.dtype}; declared: {list(wanted)} of "
                f"{field.dtype}"
            )
        if (
            field.bits is not None
            and field.bits < 8
            and x.is_cpu
            and x.numel()
            and int(x.max()) >> field.bits
        ):
            raise QuantKVError(
                f"encode made the code {int(x.max())}, beyond the {field.bits} bits of {field.name!r}"
            )


def _field(named: Mapping[str, Field], name: str, term: object) -> Field:
    if name not in named:
        raise QuantKVError(f"{term} reads a field {name!r}; declared: {', '.join(named)}")
    return named[name]


def _check_codes(place: Place, named: Mapping[str, Field], term: Codes) -> None:
    if not isinstance(term.scales, tuple):
        raise QuantKVError(f"the scales of codes are a tuple, not {term.scales!r}")
    codes = _field(named, term.field, term)
    if not codes.tiled or codes.heads != place.num_heads:
        raise QuantKVError(f"{term} needs {term.field!r} tiled, one code for each head, token and channel")
    if term.first < 0 or term.first + codes.width > place.head_dim:
        raise QuantKVError(f"{term} reaches beyond head_dim {place.head_dim}")
    if isinstance(term.number, Float8) and (codes.bits or 8, codes.dtype) != (8, torch.uint8):
        raise QuantKVError(f"{term} needs {term.field!r} as uint8 codes of 8 bits")
    if isinstance(term.number, Table) and len(term.number.values) != 2 ** (codes.bits or 0):
        raise QuantKVError(f"a table of {len(term.number.values)} numbers for codes of {codes.bits} bits")
    for scale in (*term.scales, *([term.zero] if term.zero else [])):
        _check_scale(place, named, term, scale, codes.width)


def _check_scale(place: Place, named: Mapping[str, Field], term: Codes, scale: Scale, width: int) -> None:
    field = _field(named, scale.field, term)
    wanted = (*scale.sharing.entry_shape(place.num_heads, width), scale.sharing.tokens)
    if (field.heads, field.width, field.tokens) != wanted:
        raise QuantKVError(
            f"{scale.field!r} is shared as {scale.sharing}: (heads, width, tokens) {wanted}, but its field "
            f"is {(field.heads, field.width, field.tokens)}"
        )


def _check_sparse(place: Place, named: Mapping[str, Field], term: Sparse) -> None:
    index, value = _field(named, term.index, term), _field(named, term.value, term)
    shapes = {(field.heads, field.tokens) for field in (index, value)}
    if shapes != {(place.num_heads, 1)} or index.width != value.width:
        raise QuantKVError(f"{term} needs as many indices as values, for each head and token")
    if index.dtype != torch.uint8 or place.head_dim > MOST_CHANNELS:
        raise QuantKVError(
            f"{term} names channels of up to {MOST_CHANNELS} by uint8, and head_dim is {place.head_dim}, "
            f"{term.index!r} {index.dtype}"
        )


def _check_low_rank(place: Place, named: Mapping[str, Field], term: LowRank) -> None:
    left, right = _field(named, term.left, term), _field(named, term.right, term)
    if (left.heads, left.tokens, right.heads) != (place.num_heads, 1, place.num_heads):
        raise QuantKVError(
            f"{term} needs {term.left!r} for each head and token, {term.right!r} for each head"
        )
    if right.width != left.width * place.head_dim:
        raise QuantKVError(f"{term} needs {left.width} · {place.head_dim} numbers in {term.right!r}")
