"""Reversible steps: known answers, undone to what they were, and the same for every token in any call."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantkv.codecs.fields import compute_dtype
from quantkv.codecs.maps.norm import Norm, NormAll, summed
from quantkv.codecs.place import Place, Rope, Tokens
from quantkv.codecs.steps import (
    Hadamard,
    Matrix,
    Shift,
    Step,
    Stretch,
    TokenScale,
    Turn,
    butterflies,
    fold,
)

ROWS, HEADS, LENGTH, DIM = 3, 2, 40, 24
HALVES = Rope(tuple(10.0 ** -(i / 3) for i in range(10)))
PAIRS = Rope(HALVES.frequencies, interleaved=True)
STEPS: dict[str, Step] = {
    "hadamard": Hadamard(8),
    "matrix": Matrix("rot"),
    "shift": Shift("mean"),
    "stretch": Stretch("stretch"),
    "norm": TokenScale("norm"),
    "normall": TokenScale("normall"),
    "halves": Turn(HALVES),
    "pairs": Turn(PAIRS),
}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


ROTATIONS = torch.linalg.qr(numbers(HEADS, DIM, DIM, seed=1)).Q
PLACE = Place("key", HEADS, DIM, torch.float64, rope=HALVES, constants={"rot": ROTATIONS})
STATE = {"mean": numbers(ROWS, HEADS, DIM, seed=2), "stretch": numbers(ROWS, HEADS, DIM, seed=3).abs() + 0.1}
FIRST = (0, 1000, 70000)


def tokens_at(rows: slice = slice(None), start: int = 0) -> Tokens:
    first = tuple(at + start for at in FIRST[rows])
    return Tokens(PLACE, first, {name: state[rows] for name, state in STATE.items()})


def measured(x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
    return Norm().measure(x, tokens) | NormAll().measure(x, tokens)


def both_ways(step: Step, x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """What the step makes of tokens, and what comes back."""
    fields = measured(x, tokens)
    y = step.apply(x, tokens, fields)
    return y, step.undo(y, tokens, fields)


@pytest.mark.parametrize("name", STEPS)
def test_undone_is_what_it_was(name: str) -> None:
    x = numbers(ROWS, HEADS, LENGTH, DIM)
    y, back = both_ways(STEPS[name], x, tokens_at())
    assert y.shape == x.shape and not torch.allclose(y, x)
    torch.testing.assert_close(back, x, rtol=1e-12, atol=1e-12)


LAYOUTS = ("plain", "transposed", "strided", "reversed")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, lying otherwise in memory."""
    if layout == "transposed":  # as models give them: [N, T, H, D] seen as [N, H, T, D]
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        return torch.stack([x, -x], -1).flatten(-2)[..., ::2]
    return x.transpose(0, 3).contiguous().transpose(0, 3) if layout == "reversed" else x


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(STEPS)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    cuts=st.sets(st.integers(1, LENGTH - 1)),
    alone=st.booleans(),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 9),
)
def test_a_token_does_not_depend_on_its_call(
    name: str, dtype: torch.dtype, cuts: set[int], alone: bool, layout: str, seed: int
) -> None:
    given_x = numbers(ROWS, HEADS, LENGTH, DIM, seed=seed, dtype=dtype)
    x = given_x.to(compute_dtype(dtype))
    whole = both_ways(STEPS[name], x, tokens_at())
    rows = [slice(i, i + 1) for i in range(ROWS)] if alone else [slice(None)]
    ends = [0, *sorted(cuts), LENGTH]
    for row in rows:
        for start, end in pairwise(ends):
            part = laid_out(given_x[row, :, start:end], layout).to(compute_dtype(dtype))
            found = both_ways(STEPS[name], part, tokens_at(row, start))
            for one, of_all in zip(found, whole, strict=True):
                assert torch.equal(one, of_all[row, :, start:end])


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 80])
def test_sums_by_halves(width: int) -> None:
    x = torch.arange(2.0 * width).reshape(2, width)
    assert summed(x).tolist() == [[sum(range(width))], [sum(range(width, 2 * width))]]


def test_hadamard_of_two_and_four() -> None:
    root = math.sqrt(2)
    torch.testing.assert_close(butterflies(torch.tensor([3.0, 1.0]), 2), torch.tensor([4 / root, 2 / root]))
    four = butterflies(torch.tensor([1.0, 2.0, 3.0, 4.0]), 4)
    assert four.tolist() == [5.0, -1.0, -2.0, 0.0]  # (1 ± 2 ± 3 ± 4) / 2 by the signs of Sylvester's rows


@pytest.mark.parametrize(("width", "block"), [(8, 8), (64, 64), (80, 16)])
def test_hadamard_is_the_matrix_in_runs(width: int, block: int) -> None:
    """Sylvester: entry (i, j) is −1 to the number of bits that i and j share."""
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(block)] for i in range(block)])
    whole = torch.block_diag(*[signs.double() / math.sqrt(block)] * (width // block))
    x = numbers(5, width)
    torch.testing.assert_close(butterflies(x, block), x @ whole, rtol=1e-12, atol=1e-12)
    assert not torch.equal(butterflies(x, block)[:, :block], x[:, :block])


def test_matrix_is_a_product_per_head() -> None:
    x = numbers(ROWS, HEADS, LENGTH, DIM)
    expected = torch.einsum("nhtd,hde->nhte", x, ROTATIONS)
    torch.testing.assert_close(Matrix("rot").apply(x, tokens_at(), {}), expected, rtol=1e-12, atol=1e-12)


def test_turning_back_by_hand() -> None:
    """A quarter turn at position 1, a half at position 2; the last channel does not turn."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]] * 3, dtype=torch.float64)[None, None]
    quarter = math.pi / 2
    place = Place("key", 1, 5)
    halves = Turn(Rope((quarter, 0.0))).apply(x, Tokens(place, (0,)), {})
    expected = [[1, 2, 3, 4, 5], [3, 2, -1, 4, 5], [-1, 2, -3, 4, 5]]
    torch.testing.assert_close(halves[0, 0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    pairs = Turn(Rope((quarter, 0.0), interleaved=True)).apply(x, Tokens(place, (0,)), {})
    expected = [[1, 2, 3, 4, 5], [2, -1, 3, 4, 5], [-1, -2, 3, 4, 5]]
    torch.testing.assert_close(pairs[0, 0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", [0, 1023, 1024, 5000, 1_000_000])
def test_angles_are_position_times_frequency(first: int) -> None:
    """Of a pair (1, 0), turned forward: (cos, sin) of the angle; blocks of positions join without a seam."""
    rope = Rope((1.0, 0.25))
    x = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64).expand(1, 1, 3, 4)
    y = Turn(rope).undo(x, Tokens(Place("key", 1, 4), (first,)), {})
    for t in range(3):
        angles = [(first + t) * f for f in rope.frequencies]
        expected = [*map(math.cos, angles), *map(math.sin, angles)]
        assert y[0, 0, t].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_turn_without_positions_is_an_error() -> None:
    with pytest.raises(AssertionError, match="position"):
        Turn(HALVES).apply(numbers(2, HEADS, 1, DIM), Tokens(PLACE, (0,)), {})


@pytest.mark.parametrize("name", ["hadamard", "matrix", "stretch"])
def test_linear_steps_fold_into_queries(name: str) -> None:
    """`q · undo(y) = folded(q) · y`, folded as engines do it."""
    y, q, step, tokens = numbers(ROWS, HEADS, LENGTH, DIM), numbers(DIM, seed=5), STEPS[name], tokens_at()
    scores = step.undo(y, tokens, {}) @ q
    folded = {
        "hadamard": butterflies(q, 8).expand(ROWS, HEADS, DIM),
        "matrix": torch.einsum("d,hde->he", q, ROTATIONS).expand(ROWS, HEADS, DIM),
        "stretch": q * STATE["stretch"],
    }[name]
    torch.testing.assert_close(scores, torch.einsum("nhtd,nhd->nht", y, folded), rtol=1e-10, atol=1e-10)
    assert step.folds == "linear"


def test_shifts_and_scales_fold_into_biases_and_factors() -> None:
    x, q, tokens = numbers(ROWS, HEADS, LENGTH, DIM), numbers(DIM, seed=5), tokens_at()
    fields = measured(x, tokens)
    bias = (STATE["mean"] @ q)[:, :, None]
    torch.testing.assert_close(
        Shift("mean").undo(x, tokens, fields) @ q, x @ q + bias, rtol=1e-10, atol=1e-10
    )
    for name in ("norm", "normall"):
        factor = fields[name][..., 0].double()
        undone = TokenScale(name).undo(x, tokens, fields)
        torch.testing.assert_close(undone @ q, (x @ q) * factor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("chain", "folds"),
    [
        ((), True),
        (("hadamard", "shift", "norm"), True),
        (("norm", "hadamard"), True),
        (("norm", "shift"), False),
        (("shift", "norm", "shift"), False),
        (("halves",), False),
        (("halves", "shift"), False),
    ],
)
def test_which_chains_fold(chain: tuple[str, ...], folds: bool) -> None:
    assert fold(tuple(STEPS[name] for name in chain)) == folds
