"""Numbers in tables: sensible digits, an em dash where nothing was measured, LaTeX that compiles."""

from __future__ import annotations

import math

import pytest

from quantkv.wording import numbers
from quantkv.wording.numbers import DASH


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (37.5, 3, "37.5"),
        (1234.4, 3, "1234"),
        (9.996, 3, "10.0"),
        (0.012345, 2, "0.012"),
        (0.0, 3, "0.00"),
        (-2.5, 2, "−2.5"),
    ],
)
def test_significant_digits(value: float, digits: int, text: str) -> None:
    assert numbers.significant(value, digits) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0058, "0.0058"), (1.23e-5, "1.2e−5"), (0.114, "0.11"), (0.0, "0"), (3e-8, "3.0e−8")],
)
def test_small_numbers_take_an_exponent_below_a_thousandth(value: float, text: str) -> None:
    assert numbers.compact(value) == text


def test_interval_decides_the_decimals_of_a_difference() -> None:
    assert numbers.with_interval(0.01, 0.006, 0.014, sign=True) == "+0.0100 [+0.0060, +0.0140]"
    assert numbers.with_interval(0.1023, 0.058, 0.145, sign=True) == "+0.102 [+0.058, +0.145]"
    assert numbers.with_half_width(0.01, 0.006, 0.014, sign=True) == "+0.0100 ±0.0040"


def test_difference_without_interval_is_shown_alone() -> None:
    assert numbers.with_interval(0.01, None, None, sign=True) == "+0.0100"


def test_rounded_zero_has_no_sign() -> None:
    assert numbers.fixed(-1e-9, 4, sign=True) == "0.0000"


def test_interval_of_a_small_kl_shares_its_exponent() -> None:
    assert numbers.compact_interval(2e-5, 1.6e-5, 2.5e-5) == "2.0 [1.6, 2.5]e−5"
    assert numbers.compact_interval(0.0058, 0.0046, 0.0073) == "0.0058 [0.0046, 0.0073]"


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100.0"), (0.9999, ">99.9"), (0.971, "97.1"), (0.0, "0.0"), (1e-5, "<0.1")]
)
def test_percent_never_rounds_to_certainty(share: float, text: str) -> None:
    assert numbers.percent(share) == text


@pytest.mark.parametrize(
    "show",
    [numbers.significant, numbers.compact, numbers.percent, numbers.ratio, lambda v: numbers.fixed(v, 2)],
)
@pytest.mark.parametrize("value", [None, math.nan])
def test_missing_is_an_em_dash(show: numbers.Any, value: float | None) -> None:
    assert show(value) == DASH


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512"), (8192, "8192"), (16384, "16k"), (131072, "128k"), (10000, "10000")]
)
def test_context_lengths(count: int, text: str) -> None:
    assert numbers.tokens(count) == text
