"""Numbers kept apart: which ones go to slots, what is left in them, and what they cost."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from quantkv.codecs import Place, Stored, Tokens
from quantkv.codecs.outliers import Outliers
from quantkv.errors import QuantKVError
from quantkv.store import page_layout


def method(head_dim: int, heads: int = 1) -> Stored:
    return Stored(Outliers(), Place("key", heads, head_dim))


def encoded(x: Tensor) -> dict[str, Tensor]:
    stored = method(x.shape[-1], x.shape[1])
    return stored.encode(x, Tokens(stored.place))


def decoded(x: Tensor) -> Tensor:
    stored = method(x.shape[-1], x.shape[1])
    return stored.decode(encoded(x), Tokens(stored.place), torch.float32)


def one_token(*numbers: float) -> Tensor:
    return torch.tensor(numbers)[None, None, None]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("numbers", "index", "scale", "zero", "codes", "value"),
    [
        ((0, 7, 3, 100), 3, 1, 0, [0, 7, 3, 7], 93),  # the rest is 0 to 7, and 100 has the code 7 of its own
        ((0, 7, 3, -100), 3, 1, 0, [0, 7, 3, 0], -100),
        ((-50, 2, 16, 4), 0, 2, 2, [0, 0, 7, 1], -52),
        (
            (0, 0, 7, 7),
            2,
            1,
            0,
            [0, 0, 7, 7],
            0,
        ),  # any one leaves the same range: the highest, lowest channel
        ((5, 5, 5, 5), 0, 2**-24, 5, [0, 0, 0, 0], 0),
        ((0, 0, 0, 0), 0, 2**-24, 0, [0, 0, 0, 0], 0),
        ((-9, -9, -9, 5), 3, 2**-24, -9, [0, 0, 0, 7], 14 - 7 * 2**-24),
    ],
)
def test_one_slot_by_hand(
    numbers: tuple[float, ...], index: int, scale: float, zero: float, codes: list[int], value: float
) -> None:
    made = encoded(one_token(*numbers))
    assert made["index"].flatten().tolist() == [index]
    assert (made["scale"].item(), made["zero"].item()) == (scale, zero)
    assert made["codes"].flatten().tolist() == codes
    assert made["value"].item() == torch.tensor(value, dtype=torch.float16).item()


@pytest.mark.parametrize(
    ("apart", "index"),
    [
        ({7: 50.0, 90: 60.0}, {7, 90}),
        ({7: -50.0, 90: 60.0}, {7, 90}),
        ({7: -50.0, 90: -60.0}, {7, 90}),
        ({7: 50.0, 90: 50.0, 30: 50.0}, {7, 30}),  # of three alike those of the lowest channels
        ({7: 50.0, 90: 50.0, 30: -50.0}, {7, 30}),
        ({}, {0, 1}),  # all are alike
    ],
)
def test_two_slots_go_to_what_stands_out_most(apart: dict[int, float], index: set[int]) -> None:
    x = torch.ones(1, 1, 1, 128)
    for channel, number in apart.items():
        x[..., channel] = number
    assert set(encoded(x)["index"].flatten().tolist()) == index


@pytest.mark.parametrize(("head_dim", "slots"), [(7, 1), (101, 2)])
def test_no_other_choice_leaves_a_shorter_range(head_dim: int, slots: int) -> None:
    for token in (normal(40, head_dim) ** 3).round(decimals=1):  # with equal numbers among them
        chosen = encoded(token[None, None, None])["index"].flatten().tolist()
        ways = itertools.combinations(range(head_dim), slots)
        assert len(set(chosen)) == slots
        assert _range(token, chosen) == min(_range(token, way) for way in ways)


def _range(token: Tensor, apart: tuple[int, ...] | list[int]) -> float:
    rest = sorted(number for channel, number in enumerate(token.tolist()) if channel not in apart)
    return rest[-1] - rest[0]


def test_numbers_come_back_within_half_a_step_and_those_in_slots_within_float16() -> None:
    x = normal(2, 3, 50, 128)
    x[..., 17] *= 40
    made, back = encoded(x), decoded(x)
    error, index = (x - back).abs(), made["index"].long()
    steps = made["scale"].float()
    assert torch.all(error.scatter(-1, index, 0.0) <= steps / 2 * (1 + 1e-5))
    left = made["value"].float().abs()
    assert torch.all(error.gather(-1, index) <= left * 2**-11 + 1e-5)


def test_the_range_is_that_of_the_rest() -> None:
    x = normal(1, 3, 50, 64)
    spiked = x.clone()
    spiked[..., 9] = 1000.0
    without = torch.cat([x[..., :9], x[..., 10:]], -1)
    low, high = without.amin(-1, keepdim=True), without.amax(-1, keepdim=True)
    made = encoded(spiked)
    scale, zero = made["scale"].float(), made["zero"].float()
    assert torch.equal(made["index"], torch.full_like(made["index"], 9))
    assert torch.all((zero <= low) & (zero >= low - low.abs() * 2**-10))
    assert torch.all((7 * scale + zero >= high) & (scale <= (high - low) / 7 * (1 + 2**-8)))


def test_a_token_is_stored_the_same_in_any_call() -> None:
    x = normal(3, 2, 60, 128)
    together = encoded(x)
    apart = [encoded(part.contiguous()) for part in x.split([1, 1, 7, 51], 2)]
    for name, numbers in together.items():
        assert torch.equal(numbers, torch.cat([part[name] for part in apart], 2))


@pytest.mark.parametrize("number", [0.0, 1.0, -5.0, 1e-30, 6e4, 1e30, -1e30])
@pytest.mark.parametrize("spike", [None, 6e4, 1e30, -1e30])
def test_constant_tokens_zeros_and_large_numbers_stay_finite(number: float, spike: float | None) -> None:
    x = torch.full((1, 2, 3, 128), number)
    if spike is not None:
        x[..., 3] = spike
    assert torch.isfinite(decoded(x)).all()


@pytest.mark.parametrize(
    ("head_dim", "bits"),
    [
        (64, 3 + (32 + 24) / 64),  # one slot: 3.875
        (100, 3 + (32 + 24) / 100),
        (128, 3 + (32 + 48) / 128),  # two: 3.625
        (256, 3 + (32 + 72) / 256),  # three: 3.40625
    ],
)
def test_bits_by_hand(head_dim: int, bits: float) -> None:
    stored = method(head_dim)
    per_token = sum(f.width * (f.bits or 8 * f.dtype.itemsize) for f in stored.fields)
    assert per_token / head_dim == bits
    assert math.isclose(page_layout(stored).bits_per_element, bits) or head_dim == 100  # panels are padded


def test_channels_that_no_byte_can_name_are_refused() -> None:
    method(256)
    with pytest.raises(QuantKVError, match=r"out3 .* the keys of layer 0 have 257, and 256 is the most"):
        method(257)
