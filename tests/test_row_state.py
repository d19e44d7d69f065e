"""Row state: fitted once on exactly a row's first tokens after the sinks, frozen, and each row's own."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from stores import CPU, everything, feed, same_bits, used_fields
from torch import Tensor

from quantkv.codecs import Place, Sharing, Stored
from quantkv.codecs.affine import Affine
from quantkv.codecs.maps.ctr import Ctr
from quantkv.codecs.maps.unrope import Unrope
from quantkv.codecs.place import Rope
from quantkv.engines.choosing import REFERENCE
from quantkv.policy import Window
from quantkv.store import TensorStore

HEADS, DIM = 2, 16
SINKS, FIT, RECENT, FLUSH, RESERVE = 2, 16, 4, 8, 6
FIRST = SINKS + FIT
"""The least length at which anything is packed."""
WINDOW = Window(SINKS, RECENT, FLUSH, RESERVE, FIRST - 1)
CENTRED = Stored(Affine(4, Sharing()), Place("key", HEADS, DIM), (Ctr(),), FIT)


def new(rows: int = 1, pads: list[int] | None = None, method: Stored = CENTRED) -> TensorStore:
    return TensorStore(method, WINDOW, rows, CPU, REFERENCE, pads)


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = 30 * torch.randn(rows, HEADS, 1, DIM, generator=generator)
    return means + torch.randn(rows, HEADS, length, DIM, generator=generator)


def filled(length: int, rows: int = 1, pads: list[int] | None = None) -> tuple[TensorStore, Tensor]:
    store, x = new(rows, pads), tokens(rows, length)
    store.append(x)
    return store, x


def means(store: TensorStore) -> Tensor:
    return store.pages.row_state.numbers["mean"]


def by_hand(x: Tensor, pad: int = 0) -> Tensor:
    """The mean `[H, D]` of a row `[H, T, D]` over tokens [S, S + W), summed without any rounding."""
    part = x[:, pad + SINKS : pad + FIRST].double()
    exact = [[math.fsum(part[h, :, d].tolist()) / FIT for d in range(DIM)] for h in range(HEADS)]
    return torch.tensor(exact, dtype=torch.float64).float()


def same(one: TensorStore, other: TensorStore) -> bool:
    return torch.equal(means(one), means(other)) and torch.equal(everything(one), everything(other))


def test_fitted_on_exactly_the_first_tokens_after_the_sinks() -> None:
    store, x = filled(FIRST + RECENT + FLUSH + 10)
    assert torch.equal(means(store)[0], by_hand(x[0]))
    for at, counts in ((SINKS - 1, False), (SINKS, True), (FIRST - 1, True), (FIRST, False)):
        other, changed = new(), x.clone()
        changed[:, :, at] += 1000.0
        other.append(changed)
        assert torch.equal(means(other), means(store)) != counts, at


def test_what_is_packed_is_the_codec_s_of_what_is_left_of_a_mean() -> None:
    """Within half of a step of sixteen over the range of the rest, whatever the mean."""
    store, x = filled(300)
    packed = slice(SINKS, SINKS + store.pages.used[0])
    rest = x[:, :, packed] - by_hand(x[0])[:, None]
    step = (rest.amax(-1, keepdim=True) - rest.amin(-1, keepdim=True)) / 15
    error = (everything(store) - x)[:, :, packed].abs()
    assert store.pages.used[0] > 250 and (error <= step * 0.51 + 1e-4).all()
    assert x.abs().max() > 20 > step.max() * 15


def test_nothing_is_packed_before_there_is_a_state() -> None:
    store, x = new(), tokens(1, FIRST + RECENT)
    for n in range(1, FIRST + 1):
        store.append(x[:, :, n - 1 : n])
        assert store.pages.row_state.fitted == [store.pages.used[0] > 0] == [n >= FIRST]
        assert torch.equal(everything(store), x[:, :, :n]) == (n < FIRST)
    assert store.pages.used == [WINDOW.packed(FIRST)] == [8]


@pytest.mark.parametrize("sizes", [[200], [1] * 200, [17, 1, 182], [18, 182], [3, 40, 157], [7] * 28 + [4]])
def test_state_is_frozen_and_the_same_in_any_calls(sizes: list[int]) -> None:
    whole, x = filled(200)
    store, seen = new(), None
    for part in x.split(sizes, 2):
        store.append(part)
        if store.pages.row_state.fitted[0]:
            seen = means(store).clone() if seen is None else seen
            assert torch.equal(means(store), seen)
    assert same(store, whole) and same_bits(used_fields(store), used_fields(whole))


def test_rows_of_other_padding_are_fitted_on_their_own_tokens() -> None:
    pads = [0, 9, 3]
    store, x = new(3, pads), tokens(3, 120)
    feed(store, x, [20, *[1] * 20, 80])  # rows begin to be packed one after the other
    for row, pad in enumerate(pads):
        assert torch.equal(means(store)[row], by_hand(x[row], pad))
        alone = new()
        alone.append(x[row : row + 1, :, pad:])
        assert same_bits(used_fields(store, row), used_fields(alone))
        assert torch.equal(everything(store)[row, :, pad:], everything(alone)[0])


def test_a_row_alone_is_fitted_as_in_a_batch() -> None:
    both, x = filled(100, rows=2)
    for row in range(2):
        alone = new()
        alone.append(x[row : row + 1])
        assert torch.equal(means(alone)[0], means(both)[row])


def test_state_moves_with_its_row() -> None:
    store, x = filled(60, rows=2)
    store.select([1, 0, 1])
    assert torch.equal(means(store), torch.stack([by_hand(x[row]) for row in (1, 0, 1)]))
    more = tokens(3, 50, seed=1)
    store.append(more)
    for i, row in enumerate((1, 0, 1)):
        alone = new()
        alone.append(x[row : row + 1])
        alone.append(more[i : i + 1])
        assert torch.equal(everything(store)[i], everything(alone)[0])


def test_rows_selected_before_they_are_fitted() -> None:
    store, x = filled(10, rows=2)
    store.select([1, 1])
    store.append(tokens(2, 50, seed=1))
    whole = torch.cat([x[[1, 1]], tokens(2, 50, seed=1)], 2)
    assert torch.equal(means(store), torch.stack([by_hand(row) for row in whole]))


COPIES = {
    "fork": TensorStore.fork,
    "deepcopy": copy.deepcopy,
    "pickle": lambda store: pickle.loads(pickle.dumps(store)),
}


def saved(store: TensorStore) -> TensorStore:
    parts, numbers = store.state()
    other = new(store.rows)
    other.restore({name: x.clone() for name, x in parts.items()}, copy.deepcopy(numbers))
    return other


@pytest.mark.parametrize("how", [*COPIES, "save and load"])
@pytest.mark.parametrize("length", [10, 60])
def test_copies_have_it_and_go_their_own_ways(how: str, length: int) -> None:
    """Before and after a row is fitted."""
    store, _ = filled(length, rows=2)
    other = COPIES.get(how, saved)(store)
    assert same(store, other) and other.pages.row_state.fitted == store.pages.row_state.fitted
    assert other.nbytes == store.nbytes or how == "fork"
    kept = everything(store), means(store).clone()
    other.append(tokens(2, 70, seed=2))
    assert torch.equal(everything(store), kept[0]) and torch.equal(means(store), kept[1])
    store.append(tokens(2, 70, seed=2))
    assert same(store, other)
    other.truncate(5)
    other.append(tokens(2, 70, seed=3))
    assert not torch.equal(means(other), means(store))


# --- roll-back ---
@pytest.mark.parametrize("back", [1, 3, RESERVE])
def test_going_back_a_little_is_as_if_never_gone_forward(back: int) -> None:
    """Across the length at which the state is fitted, too."""
    for length in (FIRST - 1, FIRST, FIRST + 2, 80):
        store, x = new(), tokens(1, length)
        store.append(x)
        store.append(tokens(1, back, seed=5))
        assert store.truncate(length) == 0
        assert store.pages.row_state.fitted == [length >= FIRST]
        never = new()
        never.append(x)
        for each in (store, never):
            each.append(tokens(1, 40, seed=6))
        assert same(store, never)


def test_a_roll_back_into_the_fitted_tokens_fits_anew() -> None:
    store, x = filled(80)
    held = everything(store)
    assert store.truncate(FIRST) == 1 and store.pages.row_state.fitted == [True]
    assert torch.equal(means(store)[0], by_hand(x[0]))
    store.truncate(FIRST - 1)
    assert store.pages.row_state.fitted == [False] and store.pages.used == [0]
    assert torch.equal(everything(store), held[:, :, : FIRST - 1])  # decoded values for exact ones
    more = tokens(1, 60, seed=7)
    store.append(more)
    now = torch.cat([held[:, :, : FIRST - 1], more], 2)
    assert torch.equal(means(store)[0], by_hand(now[0])) and not torch.equal(means(store)[0], by_hand(x[0]))


def test_a_roll_back_of_padded_rows_forgets_those_that_lost_tokens() -> None:
    store, x = filled(80, rows=2, pads=[0, 10])
    store.truncate(FIRST + 5)
    assert store.pages.row_state.fitted == [True, False]
    assert torch.equal(means(store)[0], by_hand(x[0]))
    store.append(tokens(2, 40, seed=8))
    assert store.pages.row_state.fitted == [True, True]
    assert torch.equal(means(store)[0], by_hand(x[0]))


# --- bytes ---
@pytest.mark.parametrize("rows", [1, 3])
def test_state_is_counted(rows: int) -> None:
    """Four bytes for each row, head and channel, before anything is packed and after."""
    plain = Stored(Affine(4, Sharing()), Place("key", HEADS, DIM))
    store, without = new(rows), new(rows, method=plain)
    for length in (1, 16, 1, 5, 100, 1, 700):
        for each in (store, without):
            each.append(tokens(rows, length))
        assert store.nbytes - without.nbytes == 4 * rows * HEADS * DIM
        assert store.nbytes == store.predicted_nbytes()
        assert store.nbytes == sum(x.untyped_storage().nbytes() for x in store.storages())


# --- positions ---
def test_a_row_s_first_position_goes_with_it() -> None:
    """Turned by hand: pair i of position p by p · f_i; what is stored is turned back, wherever rows begin."""
    rope = Rope((1.0, 0.1, 0.01, 0.0))
    method = Stored(Affine(8, Sharing()), Place("key", HEADS, 8, torch.float64, rope=rope), (Unrope(),))
    store = TensorStore(method, WINDOW, 2, CPU, REFERENCE, [0, 3])
    assert store.pages.row_state.first == [SINKS, SINKS]
    store.pages.row_state.first = [SINKS + 5, SINKS]
    constant = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8], dtype=torch.float64)
    x = torch.empty(2, HEADS, 400, 8, dtype=torch.float64)
    for slot in range(400):
        for row, position in enumerate((slot + 5, slot - 3)):
            angle = torch.tensor(rope.frequencies, dtype=torch.float64) * position
            a, b = constant[:4], constant[4:]
            turned = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
            x[row, :, slot] = torch.cat(turned)
    feed(store, x, [30, *[1] * 10, 360])
    codes = used_fields(store, 0)["codes"], used_fields(store, 1)["codes"]
    assert all((row == row[:, :1]).all() for row in codes)  # every token is the same before it turns
    view = everything(store)
    assert (view[0] - x[0]).abs().max() < 7 / 255 and (view[1, :, 3:] - x[1, :, 3:]).abs().max() < 7 / 255
    store.select([1, 0])
    assert store.pages.row_state.first == [SINKS, SINKS + 5]
    assert torch.equal(everything(store)[1], view[0])
