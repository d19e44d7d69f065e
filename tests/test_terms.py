"""Terms: what sparse entries, low rank and ranges of channels decode to, by hand and through a store."""

from __future__ import annotations

import pytest
import torch
from stores import CPU, everything, feed
from torch import Tensor

from quantkv.codecs import (
    Affine,
    Codec,
    Codes,
    Field,
    LowRank,
    Place,
    Plain,
    Scale,
    Sharing,
    Sparse,
    Stored,
    Table,
    Tokens,
)
from quantkv.codecs.place import Which
from quantkv.codecs.terms import decoded, formula
from quantkv.engines.choosing import REFERENCE, engine_for
from quantkv.policy import Window
from quantkv.store import TensorStore

DTYPES = (torch.float32, torch.float64)


# --- by hand ---
@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_by_hand(dtype: torch.dtype) -> None:
    """One head, two tokens of four channels; two entries of the second token name one channel."""
    fields = {
        "index": torch.tensor([[3, 0], [1, 1]], dtype=torch.uint8)[None, None],
        "value": torch.tensor([[5.0, -2.0], [0.5, 0.25]], dtype=torch.float16)[None, None],
    }
    x = decoded((Sparse("index", "value"),), fields, 4, dtype)
    assert x.dtype == dtype
    assert x[0, 0].tolist() == [[-2.0, 0.0, 0.0, 5.0], [0.0, 0.75, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_low_rank_by_hand(dtype: torch.dtype) -> None:
    """Rank 2, three channels, chunks of two tokens: rows of `left` times the chunk's own two rows."""
    fields = {
        "left": torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5], [1.0, 1.0]])[None, None],
        "right": torch.tensor([[1.0, 0, 2, 4, 1, 0], [0, 1.0, 0, 2, 2, 2]])[None, None],
    }
    x = decoded((LowRank("left", "right"),), fields, 3, dtype)
    assert x.dtype == dtype
    assert x[0, 0].tolist() == [[9.0, 2.0, 2.0], [-4.0, -1.0, 0.0], [1.0, 4.0, 1.0], [2.0, 3.0, 2.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_terms_add_up_by_hand(dtype: torch.dtype) -> None:
    """Codes of channels 1 and 2 with two scales and a zero, plus a sparse entry, plus rank one."""
    fields = {
        "codes": torch.tensor([[[[3, 1]]]], dtype=torch.uint8),
        "scale": torch.tensor([[[[0.5]]]]),
        "unit": torch.tensor([[[[4.0, 8.0]]]]),
        "zero": torch.tensor([[[[-1.0]]]]),
        "index": torch.tensor([[[[2]]]], dtype=torch.uint8),
        "value": torch.tensor([[[[10.0]]]]),
        "left": torch.tensor([[[[2.0]]]]),
        "right": torch.tensor([[[[1.0, 0.0, 1.0, 5.0]]]]),
    }
    scales = Scale("scale", Sharing()), Scale("unit", Sharing(channels=1), 0.25)
    codes = Codes("codes", Affine(1.0), scales, Scale("zero", Sharing()), first=1)
    terms = codes, Sparse("index", "value"), LowRank("left", "right")
    for order in (terms, terms[::-1]):
        # channel 1: (3 - 1) · .5 · 4 · .25 - 1 = 0; channel 2: 0 - 1 + 10 + 2
        assert decoded(order, fields, 4, dtype).flatten().tolist() == [2.0, 0.0, 11.0, 10.0]
    said = "scale · unit / 4 · (code − 1) + zero + value at index + left · right"
    assert formula(terms) == said


# --- through a store ---
class TwoRanges(Codec):
    """Codes of 3 bits from a table for the first channels, 16-bit floats for the others."""

    def __init__(self, low: int) -> None:
        self.low = low

    def fields(self, place: Place) -> tuple[Field, ...]:
        heads, width = place.num_heads, place.head_dim
        return (
            Field("low", torch.uint8, heads, 1, self.low, 3, tiled=True),
            Field("size", torch.float16, heads, 1, 1),
            Field("high", torch.float16, heads, 1, width - self.low, tiled=True),
        )

    def terms(self, place: Place) -> tuple[Codes, ...]:
        table = Table(tuple(i - 3.5 for i in range(8)))
        return (
            Codes("low", table, (Scale("size", Sharing()),)),
            Codes("high", Plain(), first=self.low),
        )

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        low = x[..., : self.low]
        size = (low.abs().amax(-1, keepdim=True) / 3.5).half()
        codes = (low / size.float() + 3.5).round().clamp(0, 7).to(torch.uint8)
        return {"low": codes, "size": size, "high": x[..., self.low :].half()}


class TopAndMean(Codec):
    """The two largest magnitudes of a token, and the mean of four tokens at rank one, weighed by one."""

    group_tokens = 4

    def fields(self, place: Place) -> tuple[Field, ...]:
        heads = place.num_heads
        return (
            Field("index", torch.uint8, heads, 1, 2),
            Field("value", torch.float32, heads, 1, 2),
            Field("left", torch.float32, heads, 1, 1),
            Field("right", torch.float32, heads, 4, place.head_dim),
        )

    def terms(self, place: Place) -> tuple[Sparse, LowRank]:
        return Sparse("index", "value"), LowRank("left", "right")

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        index = x.abs().topk(2).indices
        mean = x.unflatten(2, (-1, 4)).mean(3)
        left = torch.ones(*x.shape[:-1], 1)
        return {"index": index.to(torch.uint8), "value": x.gather(-1, index), "left": left, "right": mean}


def stored(codec: Codec, which: Which, dim: int) -> Stored:
    return Stored(codec, Place(which, 2, dim))


@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize(("dim", "low"), [(8, 3), (32, 16), (40, 24), (80, 17), (64, 63)])
def test_ranges_of_channels_in_pages(dim: int, low: int, which: Which) -> None:
    """Tiles narrower than a head, in calls of any size, by the reference and by what serves here: the numbers
    by hand, of each range apart."""
    method = stored(TwoRanges(low), which, dim)
    x = torch.randn(2, 2, 700, dim)
    for engine in (REFERENCE, engine_for(method, CPU)[0]):
        store = TensorStore(method, Window(2, 4, 8, 4), 2, CPU, engine, [0, 5])
        feed(store, x, [300, *[1] * 20, 7, 373])
        for row, pad in enumerate([0, 5]):
            packed = slice(pad + 2, pad + 2 + store.pages.used[row])
            now, given = everything(store)[row, :, packed], x[row, :, packed]
            assert store.pages.used[row] > 600
            assert torch.equal(now[..., low:], given[..., low:].half().float())
            step = (given[..., :low].abs().amax(-1, keepdim=True) / 3.5).half().float()
            codes = (given[..., :low] / step + 3.5).round().clamp(0, 7)
            torch.testing.assert_close(now[..., :low], (codes - 3.5) * step, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("which", ["key", "value"])
def test_sparse_and_low_rank_in_pages(which: Which) -> None:
    store = TensorStore(stored(TopAndMean(), which, 24), Window(1, 4, 4, 4), 1, CPU, REFERENCE)
    x = torch.randn(1, 2, 900, 24)
    feed(store, x, [500, *[1] * 30, 370])
    packed = slice(1, 1 + store.pages.used[0])
    given = x[:, :, packed]
    kept = given.abs() >= given.abs().topk(2).values[..., 1:]
    means = given.unflatten(2, (-1, 4)).mean(3).repeat_interleave(4, 2)
    expected = means + torch.where(kept, given, 0.0)
    torch.testing.assert_close(everything(store)[:, :, packed], expected, rtol=1e-6, atol=1e-6)
