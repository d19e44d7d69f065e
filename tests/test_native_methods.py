"""Every kind of term and step in the native engine, beside what `Stored.decode` gives in float64 and
attention computed by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from made import CHAINS, DECLARED, made
from test_attention import naive
from torch import Tensor

from quantkv.engines import AttentionOptions, native
from quantkv.engines.choosing import CPU
from quantkv.engines.program import refusal
from quantkv.policy import Window
from quantkv.store import TensorStore

pytestmark = pytest.mark.skipif(native.isa() is None, reason="the native engine is not here")
ISAS = native.kernels().usable_isas() if native.isa() else []
DEVICE, HEADS = torch.device("cpu"), 2


@pytest.fixture(params=ISAS)
def isa(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(native, "isa", lambda: request.param)
    return request.param


def store_of(
    declared: str, chain: str, which: Any, dim: int, pads: list[int], length: int, seed: int
) -> TensorStore:
    torch.manual_seed(seed)
    pairs = dim // 2 if seed % 3 else dim // 4
    stored = made(declared, chain, which, HEADS, dim, pairs=pairs, interleaved=seed % 2 == 0)
    assert refusal(stored) is None
    window = Window(seed % 4, 7, 32, 0)
    store = TensorStore(stored, window, len(pads), DEVICE, CPU, pads)
    scales = 1 + torch.arange(len(pads))[:, None, None, None]  # rows whose states differ
    store.append(torch.randn(len(pads), HEADS, length, dim) * scales + 0.3)
    return store


def decoded(store: TensorStore) -> Tensor:
    return store.view().read(0, store.length, torch.float64)


def near(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert (got.double() - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("declared", DECLARED)
def test_decoded_as_declared(isa: str, declared: str, chain: str) -> None:
    which = ("key", "value")[len(declared + chain) % 2]
    dim = (40, 72, 80, 64, 128)[len(declared + chain) % 5]
    store = store_of(declared, chain, which, dim, [0, 5], 290, len(declared) + len(chain))
    want = decoded(store)
    near(store.view().read(0, store.length), want, 1e-6)
    near(store.view().read(70, 130), want[:, :, 70:130], 1e-6)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("declared", DECLARED)
def test_attention_over_what_is_declared(isa: str, declared: str, chain: str) -> None:
    """Keys of the method with plain values, and the other way round; shapes and masks differ."""
    seed = len(declared) * 7 + len(chain)
    for at, which in enumerate(("key", "value")):
        dim = (40, 72, 80, 64, 128)[(seed + at) % 5]
        agree(which, (declared, chain), dim, seed + at)


def agree(which: str, method: tuple[str, str], dim: int, seed: int) -> None:
    pads, length = [[0], [0, 3], [5, 0, 2]][seed % 3], 150 + 37 * (seed % 8)
    plain = ("affine", "")
    key, value = (
        store_of(*(method if name == which else plain), name, dim, pads, length, seed)
        for name in ("key", "value")
    )
    queries, ratio = (1, 1, 2, 16, 5)[seed % 5], (1, 3, 4)[seed % 3]
    query = torch.randn(len(pads), HEADS * ratio, queries, dim)
    keys, values = decoded(key), decoded(value)
    query = query / (query.double().norm(dim=-1).max() * keys.norm(dim=-1).max() / dim**0.5 / 20).float()
    seen = torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
    mask = torch.zeros(len(pads), 1, queries, length).masked_fill(~seen, float("-inf"))
    for row, pad in enumerate(pads):
        mask[row, ..., :pad] = float("-inf")
    softcap = 15.0 if seed % 4 == 0 else None
    out = CPU.attend(query, key.view(), value.view(), AttentionOptions(mask, softcap=softcap))
    wide = mask.expand(-1, HEADS * ratio, -1, -1)
    near(out, naive(query, keys, values, wide, dim**-0.5, softcap, None), 3e-5)


@pytest.mark.parametrize("chain", ["ctr.norm.had", "unrope.ctr"])
def test_rows_take_their_state_and_positions_along(isa: str, chain: str) -> None:
    store = store_of("affine", chain, "key", 64, [0, 3, 9], 300, 2)
    before = decoded(store)
    store.select([2, 0, 0])
    near(store.view().read(0, store.length), before[[2, 0, 0]], 1e-6)


@pytest.mark.parametrize("length", [4000])
def test_turns_far_from_the_beginning(isa: str, length: int) -> None:
    store = store_of("affine", "unrope", "key", 64, [1], length, 5)
    near(store.view().read(0, length), decoded(store), 1e-6)


def test_there_is_something_of_everything() -> None:
    assert len(list(product(DECLARED, CHAINS))) == 140
