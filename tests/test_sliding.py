"""Windows that are packed: iterating, converting and going back, also after pages have left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runs import logits_in_calls, plain_cache, token_ids, with_attention
from torch import Tensor

from quantkv import QuantizedCache, QuantKVError
from quantkv.models import random_model

WINDOW = 16
SPECS = ("exact+sliding", "exact+r8+f4+k8+sliding", "exact+r3+f32+k0+sliding")
"""The last flushes by more than a window, so that a page may open behind it."""

pytestmark = pytest.mark.usefixtures("no_gradients")


def model_of(dtype: torch.dtype = torch.float32) -> Any:
    return with_attention(random_model("random-gemma3", sliding_window=WINDOW, dtype=dtype), "sdpa")


def filled_pair(model: Any, spec: str, sizes: list[int]) -> list[Any]:
    pair = [plain_cache(model), QuantizedCache(model.config, spec)]
    for cache in pair:
        logits_in_calls(model, token_ids(2, sum(sizes)), cache, sizes)
    return pair


def tensors(layer: Any) -> list[Tensor]:
    return [layer.keys + 0, layer.values + 0]


READERS: dict[str, Callable[[Any], list[Tensor]]] = {
    "first of iteration": lambda cache: [x + 0 for x in next(iter(cache))],
    "iteration": lambda cache: [x + 0 for layer in cache for x in layer if x is not None],
    "layer": lambda cache: tensors(cache.layers[0]),
    "to_dynamic": lambda cache: [
        x
        for layer in getattr(cache, "to_dynamic", lambda: cache)().layers
        for x in (*tensors(layer), torch.tensor(layer.get_seq_length()))
    ],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("reader", READERS)
def test_a_window_reads_as_transformers_keeps_it(reader: str, spec: str, dtype: torch.dtype) -> None:
    model = model_of(dtype)
    for sizes in ([5], [10, *[1] * 7], [200, 1, 1], [40, 40, *[1] * 70]):
        expected, found = (READERS[reader](cache) for cache in filled_pair(model, spec, sizes))
        assert len(expected) == len(found) >= 2
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b), sizes


@pytest.mark.parametrize("spec", SPECS)
def test_the_converted_cache_goes_on_as_the_plain_one(spec: str) -> None:
    model = model_of()
    plain, packed = filled_pair(model, spec, [90, *[1] * 20])
    back, more = packed.to_dynamic(), token_ids(2, 30, seed=3)
    sizes = [1, 9, *[1] * 20]
    assert torch.equal(logits_in_calls(model, more, back, sizes), logits_in_calls(model, more, plain, sizes))


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("spec", ["exact+r8+f4+k8+sliding", "exact+r3+f32+k8+sliding"])
def test_going_back_again_and_again_ends_where_pages_are_gone(spec: str, recording: bool) -> None:
    """Each step lies within the reserve; together they reach tokens that were given up."""
    model = model_of()
    plain, packed = filled_pair(model, spec, [200])
    if recording:  # too late for what has left
        packed.activate_past_recording()
    length, refused = 200, 0
    for _ in range(8):
        try:
            packed.crop(-8)
            length -= 8
        except QuantKVError as error:
            assert "cannot take back 8 of" in str(error)
            refused += 1
        assert [layer.get_seq_length() for layer in packed.layers] == [length] * 2
    assert refused
    plain = plain_cache(model)
    logits_in_calls(model, token_ids(2, 200)[:, :length], plain, [length])
    more, sizes = token_ids(2, 60, seed=3), [1, 9, *[1] * 50]
    expected, found = (logits_in_calls(model, more, cache, sizes) for cache in (plain, packed))
    # a prompt of other length is another sum in its last digits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("copied", [lambda c: c, lambda c: c.fork(), copy.deepcopy])
def test_a_packed_window_goes_back_no_further_than_the_plain_one_held(copied: Callable[[Any], Any]) -> None:
    model = model_of()
    plain = filled_pair(model, SPECS[0], [200])[0]
    packed = copied(QuantizedCache.from_cache(plain, model.config, "exact+r8+f4+k8+sliding"))
    with pytest.raises(
        QuantKVError, match="cannot take back 1 of 200 tokens: those before token 185 are gone"
    ):
        packed.crop(-1)
    more = token_ids(2, 8, seed=3)
    kept = logits_in_calls(model, more, packed, [8])
    packed.crop(-8)
    assert torch.equal(logits_in_calls(model, more, packed, [8]), kept)
