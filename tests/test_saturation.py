"""Numbers beyond the range of what they are stored in: counted, and said."""

from __future__ import annotations

import pytest
import torch

from quantkv import parse_spec
from quantkv.codecs import saturated

BEYOND = [
    # spec, the largest value, scales and zeros at the end of their range for 2 heads of 3 tokens
    ("int4-head+r0+f1", 6e4, 0),
    ("int4-head+r0+f1", 7e4, 6),  # zeros of -7e4; the range over 15 steps fits
    ("int4-head+r0+f1", 1e6, 12),  # and scales of 2e6 / 15
    ("int4-head@sym+r0+f1", 7e4, 6),
    ("int4-head@sym+r0+f1", 6e4, 0),
    ("int4-head@bf16+r0+f1", 1e6, 0),
    ("int4-head@fp32+r0+f1", 1e30, 0),
    ("int4-token-all+r0+f1", 7e4, 3),
    ("fp8-e4m3-head+r0+f1", 7e4, 6),
    ("fp8-e4m3-head@bf16+r0+f1", 7e4, 0),
    ("fp16", 7e4, 2 * 3 * 32),
    ("fp16", 6e4, 0),
    ("bf16", 1e30, 0),
    ("exact", 1e30, 0),
]


def values(largest: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Two heads of three tokens, each from minus to plus the largest."""
    signs = torch.tensor([1.0, -1.0]).repeat(16)
    return (signs * largest).to(dtype).expand(1, 2, 3, 32).clone()


@pytest.mark.parametrize(("spec", "largest", "count"), BEYOND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_dtype_cannot_hold_is_counted(
    spec: str, largest: float, count: int, dtype: torch.dtype
) -> None:
    codec, x = parse_spec(spec).key.build(), values(largest, dtype)
    assert saturated(x, codec.encode(x)) == count


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_counts(bad: float) -> None:
    x = values(1.0)
    x[0, 1, 2, 5] = bad
    assert saturated(x, parse_spec("int4-head@sym").key.build().encode(x)) == 1
    assert saturated(x, parse_spec("exact").key.build().encode(x)) == 0  # comes back as it was given
