"""Maps: what each does at a place, what it fits and measures, and what it refuses."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantkv.codecs.affine import Affine
from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Sharing
from quantkv.codecs.maps.ctr import Ctr
from quantkv.codecs.maps.had import Had
from quantkv.codecs.maps.map import Map
from quantkv.codecs.maps.norm import Norm, NormAll
from quantkv.codecs.maps.rot import Rot
from quantkv.codecs.maps.smooth import Smooth
from quantkv.codecs.maps.unrope import Unrope
from quantkv.codecs.place import Place, Rope, Tokens
from quantkv.codecs.raw import Raw
from quantkv.codecs.steps import Hadamard, Matrix, Shift, Stretch, TokenScale, Turn, butterflies
from quantkv.codecs.stored import Stored
from quantkv.errors import QuantKVError, UnsupportedError

HEADS, DIM = 2, 16
ROPE = Rope(tuple(0.5**i for i in range(8)))
AWKWARD = {"zeros": 0.0, "tiny": 1e-30, "subnormal": 1e-42, "half": 70000.0, "large": 1e30, "end": 3e38}


def place(**settings: object) -> Place:
    return Place(**{"tensor": "key", "num_heads": HEADS, "head_dim": DIM, "rope": ROPE} | settings)  # type: ignore[arg-type]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ROTATIONS = torch.linalg.qr(numbers(HEADS, DIM, DIM)).Q
MAPS: dict[str, Map] = {
    "had": Had(), "rot": Rot(), "ctr": Ctr(), "smooth": Smooth(), "unrope": Unrope(), "norm": Norm(),
    "normall": NormAll(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("head_dim", "block"), [(2, 2), (16, 16), (64, 64), (80, 16), (96, 32), (128, 128), (6, 2)]
)
def test_had_rotates_runs_of_the_largest_power_of_two(head_dim: int, block: int) -> None:
    assert Had().step(place(head_dim=head_dim)) == Hadamard(block)
    assert Had().step(place(head_dim=head_dim, tensor="value")) == Hadamard(block)


def test_had_refuses_odd_widths() -> None:
    with pytest.raises(QuantKVError, match="head_dim 15 is odd"):
        Had().step(place(head_dim=15))


def test_rot_takes_an_orthogonal_matrix_per_head() -> None:
    assert Rot().step(place(constants={"rot": ROTATIONS})) == Matrix("rot")
    assert Rot().step(place(constants={"rot": ROTATIONS.float()})) == Matrix("rot")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"constant 'rot' \[2, 16, 16\] for the keys of layer 3; none is given"),
        (ROTATIONS[0], r"given is \[16, 16\]"),
        (ROTATIONS * 1.01, "not orthogonal: .* differs from the identity by 2.0e-02"),
        (ROTATIONS.to(torch.float16), "not orthogonal"),
        (ROTATIONS * math.nan, "not orthogonal"),
    ],
)
def test_rot_refuses_what_is_none(given: Tensor | None, said: str) -> None:
    constants = {} if given is None else {"rot": given}
    with pytest.raises(QuantKVError, match=said):
        Rot().step(place(layer=3, constants=constants))


def test_ctr_is_the_mean_of_each_row_head_and_channel() -> None:
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0], [8.0, 20.0]], dtype=torch.float64)[None, None]
    assert Ctr().fit(x)["mean"].tolist() == [[[4.0, 20.0]]]
    assert Ctr().step(place()) == Shift("mean")
    assert Ctr.tensors == ("key",) and Ctr.fits


def test_smooth_is_the_root_of_the_deviation() -> None:
    """Deviations 4, 1/4 and 0: roots 2, 1/2, and the least allowed of the largest."""
    x = torch.tensor([[4.0, 0.25, 7.0], [-4.0, -0.25, 7.0]], dtype=torch.float64)[None, None]
    assert Smooth().fit(x)["stretch"].tolist() == [[[2.0, 0.5, 2 / 256]]]
    assert Smooth().step(place()) == Stretch("stretch")
    assert Smooth.tensors == ("key",) and Smooth.fits


@pytest.mark.parametrize("value", AWKWARD.values(), ids=AWKWARD)
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_fitted_state_is_finite_and_never_0(value: float, spread: float) -> None:
    signs = torch.ones(1, HEADS, 4, DIM, dtype=torch.float64)
    signs[:, :, ::2] -= 2 * spread
    state = Ctr().fit(signs * value) | Smooth().fit(signs * value)
    assert all(numbers.float().isfinite().all() for numbers in state.values())
    assert (state["stretch"].float() > 0).all()
    if not spread:
        assert (state["stretch"] == 1).all()


def test_one_token_is_enough_to_fit() -> None:
    x = numbers(1, HEADS, 1, DIM)
    assert torch.equal(Ctr().fit(x)["mean"], x[:, :, 0]) and (Smooth().fit(x)["stretch"] == 1).all()


def test_unrope_turns_keys_back_or_leaves_them_or_refuses() -> None:
    assert Unrope().step(place()) == Turn(ROPE)
    assert Unrope().step(place(rope=None)) is None
    with pytest.raises(UnsupportedError, match="keys of layer 2: two positions at once"):
        Unrope().step(place(rope=None, layer=2, rope_unknown="two positions at once"))
    with pytest.raises(QuantKVError, match="have 8 channels, of which 16 cannot turn"):
        Unrope().step(place(head_dim=8))
    assert Unrope.tensors == ("key",) and not Unrope.fits


def test_norm_is_the_root_mean_square_of_a_head() -> None:
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])[None, :, None]  # two heads of one token
    tokens = Tokens(place(head_dim=4))
    assert Norm().measure(x, tokens)["norm"].tolist() == [[[[2.5]], [[1.0]]]]
    both = Norm().fields(place()) + NormAll().fields(place())
    assert [(f.name, f.heads, f.tokens, f.width, f.dtype) for f in both] == [
        ("norm", HEADS, 1, 1, torch.float16), ("normall", 1, 1, 1, torch.float16),
    ]  # fmt: skip


def test_normall_is_over_all_heads_and_rounded_up() -> None:
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])[None, :, None]
    found = NormAll().measure(x, Tokens(place(head_dim=4)))["normall"]
    exact = math.sqrt(29 / 8)  # 1.90394…, between two neighbours of float16 that are 2⁻¹⁰ apart
    assert found.shape == (1, 1, 1, 1) and found.dtype == torch.float16
    assert found.item() == math.ceil(exact * 1024) / 1024


@pytest.mark.parametrize("word", ["norm", "normall"])
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_awkward_tokens_stay_finite(word: str, kind: str, dtype: torch.dtype) -> None:
    value, map, tokens = AWKWARD[kind], MAPS[word], Tokens(place())
    x = torch.full((1, HEADS, 3, DIM), value, dtype=dtype)
    fields = map.measure(x, tokens)
    expected = {"zeros": 2.0**-24, "tiny": 2.0**-24, "subnormal": 2.0**-24}.get(kind, 65504.0)
    assert fields[word].unique().tolist() == [expected]
    y = TokenScale(word).apply(x, tokens, fields)
    assert y.isfinite().all() and TokenScale(word).undo(y, tokens, fields).isfinite().all()
    assert (y == 0).all() == (kind == "zeros")


@pytest.mark.parametrize("word", ["norm", "normall"])
def test_normed_tokens_are_of_unit_size(word: str) -> None:
    """At most 1, and less by no more than float16's rounding."""
    x, tokens = numbers(3, HEADS, 50, DIM) * torch.logspace(-3, 3, 50)[:, None], Tokens(place())
    y = TokenScale(word).apply(x, tokens, MAPS[word].measure(x, tokens))
    over = (-1,) if word == "norm" else (1, -1)
    size = y.square().mean(over).sqrt()
    assert (size <= 1).all() and (size >= 1 - 2.0**-10).all()


@pytest.mark.parametrize("word", MAPS)
def test_a_docstring_says_what_a_map_is(word: str) -> None:
    """First its word, then its source and its bits."""
    module = importlib.import_module(type(MAPS[word]).__module__)
    said = module.__doc__ or ""
    assert f"`{word}`" in said.partition("\n\n")[0] and ("bits" in said or "Bits" in said)


CHAINS = (
    "had",
    "rot.norm",
    "ctr",
    "smooth.had",
    "unrope.ctr",
    "unrope.ctr.smooth.had.norm",
    "normall.ctr",
    "ctr.norm",
)
FIT = 16


def method(chain: str, codec: Codec, dtype: torch.dtype = torch.float32) -> Stored:
    at = place(dtype=dtype, constants={"rot": ROTATIONS})
    return Stored(codec, at, tuple(MAPS[word] for word in chain.split(".")), fit_tokens=FIT)


def keys(rows: int, length: int) -> Tensor:
    """Turned keys with biases and tokens of unlike sizes."""
    x = numbers(rows, HEADS, length, DIM) * (1 + numbers(rows, HEADS, length, 1, seed=1).abs())
    at = Tokens(place(), tuple(range(rows)))
    return Turn(ROPE).undo(x + 20 * numbers(1, HEADS, 1, DIM, seed=2), at, {})


def tokens_of(stored: Stored, x: Tensor, rows: slice = slice(None), start: int = 0) -> Tokens:
    """Of `rows`, whose first positions are 0, 1, 2, …; from `start` on."""
    first = range(len(x))[rows]
    state = stored.fit(x[rows, :, :FIT], first) if stored.state_shapes else {}
    return Tokens(stored.place, [at + start for at in first], state)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_chain_stores_the_same_in_any_call(chain: str, dtype: torch.dtype) -> None:
    """Row by row, seven tokens at a time, of a transposed tensor, as all at once."""
    x = keys(3, 40).to(dtype)
    stored = method(chain, Affine(4, Sharing()), dtype)
    whole = stored.encode(x, tokens_of(stored, x))
    apart = x.transpose(1, 2).contiguous().transpose(1, 2)
    for row in range(3):
        rows = slice(row, row + 1)
        for start in range(0, 40, 7):
            part = stored.encode(apart[rows, :, start : start + 7], tokens_of(stored, apart, rows, start))
            for name, numbers in part.items():
                assert torch.equal(numbers, whole[name][rows, :, start : start + 7]), (row, start, name)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_a_lossless_codec_loses_nothing(chain: str) -> None:
    """But a few roundings of numbers of up to a hundred."""
    x = keys(3, 40)
    for dtype, near in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        stored = method(chain, Raw(dtype), dtype)
        tokens = tokens_of(stored, x)
        back = stored.decode(stored.encode(x.to(dtype), tokens), tokens, dtype)
        torch.testing.assert_close(back, x.to(dtype), rtol=0, atol=near * 100)


def test_state_is_of_the_keys_as_earlier_maps_leave_them() -> None:
    """Means of keys before they were turned are the biases; norms and rotations come before the mean too."""
    x, bias = keys(2, 400), 20 * numbers(1, HEADS, 1, DIM, seed=2)[0, :, 0]
    stored = Stored(Raw(None), place(), (Unrope(), Ctr()), fit_tokens=400)
    mean = stored.fit(x, (0, 1))["mean"]
    assert (mean - bias).abs().max() < 0.5 < bias.abs().max()
    rotated = Stored(Raw(None), place(), (Unrope(), Had(), Ctr()), fit_tokens=400).fit(x, (0, 1))["mean"]
    torch.testing.assert_close(rotated, butterflies(mean, DIM), rtol=1e-4, atol=1e-4)
    assert stored.state_shapes == {"mean": (HEADS, DIM)}


def test_biases_that_turn_need_unrope_before_ctr() -> None:
    x = keys(2, 400)
    errors = {}
    for chain in ("had", "ctr", "unrope.ctr"):
        stored = method(chain, Affine(4, Sharing()), torch.float64)
        tokens = tokens_of(stored, x)
        errors[chain] = (stored.decode(stored.encode(x, tokens), tokens, torch.float64) - x).square().mean()
    assert 5 * errors["unrope.ctr"] < min(errors["ctr"], errors["had"])


def test_the_page_on_maps_has_every_word() -> None:
    page = (Path(__file__).parent.parent / "docs" / "maps.md").read_text()
    rows = {word: line for word in MAPS for line in page.splitlines() if line.startswith(f"| `{word}` |")}
    for word, map in MAPS.items():
        assert rows[word].split("|")[2].strip() == ("keys" if map.tensors == ("key",) else "keys, values")
