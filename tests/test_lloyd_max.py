"""Lloyd–Max tables: the numbers that are known, the nearest of them, and the error that they promise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quantkv import QuantKVError, parse_spec
from quantkv.codecs import Place, Stored, Tokens
from quantkv.codecs.lloyd_max import LloydMax, table
from quantkv.codecs.maps.had import Had
from quantkv.codecs.maps.map import Map
from quantkv.codecs.maps.norm import Norm, NormAll
from quantkv.store import page_layout

KNOWN = {
    2: (0.45278, 1.51042),
    3: (0.24509, 0.75601, 1.34391, 2.15195),
    4: (0.12840, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259),
}
"""The upper halves of the tables, as Max (1960) prints them, to five digits."""
DISTORTION = {2: 0.117482, 3: 0.0345478, 4: 0.00950101}
ON_A_SPHERE = {2: 0.1160, 3: 0.03397, 4: 0.009315}
"""The error left of normal vectors of 128 channels when their norm is stored: each number then has the
density of a coordinate of a sphere, and the tables above are nearly the best for it too."""


def method(bits: int, *maps: Map, heads: int = 2, head_dim: int = 64) -> Stored:
    return Stored(LloydMax(bits), Place("key", heads, head_dim), maps)


def round_trip(stored: Stored, x: Tensor) -> Tensor:
    tokens = Tokens(stored.place)
    return stored.decode(stored.encode(x, tokens), tokens, x.dtype)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bits", KNOWN)
def test_numbers_are_the_known_ones(bits: int) -> None:
    upper = KNOWN[bits]
    wanted = [*(-x for x in reversed(upper)), *upper]
    assert table(bits) == pytest.approx(wanted, abs=6e-6)
    assert all(
        math.isclose(-a, b, rel_tol=0) for a, b in zip(table(bits), reversed(table(bits)), strict=True)
    )


@pytest.mark.parametrize("bits", DISTORTION)
def test_error_of_normal_numbers_is_the_known_one(bits: int) -> None:
    x = torch.linspace(-9, 9, 360_001, dtype=torch.float64)  # a sum over a fine grid for the integral
    weight = torch.exp(-x.square() / 2)
    back = round_trip(method(bits, heads=1, head_dim=1), x[None, None, :, None]).flatten()
    error = float((weight * (x - back).square()).sum() / weight.sum())
    assert error == pytest.approx(DISTORTION[bits], rel=1e-5)


@pytest.mark.parametrize("bits", KNOWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_nearest_number_is_taken(bits: int, dtype: torch.dtype) -> None:
    x = (2 * normal(1, 2, 500, 64)).to(dtype)
    stored = method(bits)
    codes = stored.encode(x, Tokens(stored.place))["codes"]
    numbers = torch.tensor(table(bits), dtype=torch.float64)
    gaps = (x.double()[..., None] - numbers).abs()
    taken = gaps.gather(-1, codes.long()[..., None])[..., 0]
    assert codes.dtype == torch.uint8
    assert torch.all(taken <= gaps.amin(-1) + 1e-7)


@pytest.mark.parametrize("bits", KNOWN)
def test_halfway_the_lower_number_is_taken_and_beyond_the_ends_the_last(bits: int) -> None:
    x = torch.tensor([0.0, -0.0, 1e-7, 1e30, -1e30, math.inf, -math.inf])
    stored = method(bits, heads=1, head_dim=1)
    codes = stored.encode(x[None, None, :, None], Tokens(stored.place))["codes"].flatten().tolist()
    middle, last = 2 ** (bits - 1), 2**bits - 1
    assert codes == [middle - 1, middle - 1, middle, last, 0, last, 0]


@pytest.mark.parametrize("bits", ON_A_SPHERE)
def test_behind_a_norm_the_error_is_that_of_normal_numbers_at_any_size(bits: int) -> None:
    sizes = 10 ** torch.linspace(-3, 3, 512)[:, None]
    x = normal(1, 8, 512, 128) * sizes
    for maps in ((Norm(),), (Norm(), Had()), (Had(), Norm())):
        back = round_trip(method(bits, *maps, heads=8, head_dim=128), x)
        error = ((x - back) / sizes).square().mean() / (x / sizes).square().mean()
        assert float(error) == pytest.approx(ON_A_SPHERE[bits], rel=0.02)


def test_rotation_first_makes_uneven_channels_normal() -> None:
    x = normal(1, 8, 512, 128) * torch.rand(8, 1, 128, generator=torch.Generator().manual_seed(1)).exp()
    x[..., 5] += 8
    alone, rotated = (
        round_trip(method(3, *maps, heads=8, head_dim=128), x) for maps in ((Norm(),), (Had(), Norm()))
    )
    wanted = ON_A_SPHERE[3] * float(x.square().mean())
    assert float((x - rotated).square().mean()) == pytest.approx(wanted, rel=0.1)
    assert float((x - alone).square().mean()) > 2 * wanted


@pytest.mark.parametrize("number", [0.0, 1.0, -5.0, 1e-30, 6e4, 1e30])
def test_constant_tokens_and_zeros_stay_finite(number: float) -> None:
    x = torch.full((1, 2, 3, 64), number)
    for norm in (Norm(), NormAll()):
        assert torch.isfinite(round_trip(method(3, norm), x)).all()


@pytest.mark.parametrize(("head_dim", "bits"), [(64, 3.25), (128, 3.125), (256, 3.0625)])
def test_bits_are_those_of_codes_and_norm(head_dim: int, bits: float) -> None:
    assert page_layout(method(3, Norm(), head_dim=head_dim)).bits_per_element == bits


def test_without_a_norm_the_name_is_refused() -> None:
    with pytest.raises(QuantKVError, match="lm3 wants numbers of unit size: lm3@norm or lm3@normall"):
        parse_spec("lm3")
    with pytest.raises(QuantKVError, match=r"lm3@had\.norm or lm3@had\.normall"):
        parse_spec("k.lm3@had+v.int4-head")
    assert parse_spec("lm3@had.norm").value.maps == ("had", "norm")
    with pytest.raises(QuantKVError, match="takes no sharing word"):
        parse_spec("lm3-channel@g32.norm")


def test_a_norm_over_all_heads_costs_less() -> None:
    assert page_layout(method(3, NormAll(), heads=4, head_dim=64)).bits_per_element == 3 + 16 / (4 * 64)
