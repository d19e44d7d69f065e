"""Going back in the cache: bit-equal within the reserve, counted beyond it; reset, copies, old handles."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from runs import IMPLEMENTATIONS, logits_in_calls, plain_cache, token_ids, with_attention

from quantkv import QuantizedCache, QuantKVError, UnsupportedError

SPEC = "int4-head+r8+f16+s2+k8"
FLUSH = 42  # boundaries lie at lengths 26, 42, 58, …

pytestmark = pytest.mark.usefixtures("no_gradients")


def run(model: Any, cache: QuantizedCache, ids: torch.Tensor, sizes: list[int] | None = None) -> torch.Tensor:
    return logits_in_calls(model, ids, cache, sizes or [1] * ids.shape[1])


def deep(cache: QuantizedCache) -> list[int]:
    return cache.describe()["deep_rollbacks"].tolist()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("length", range(FLUSH - 3, FLUSH + 2))
def test_crop_within_the_reserve_is_as_if_never_gone_forward(
    tiny_llama: Any, length: int, implementation: str
) -> None:
    """Every depth at every position around a flush, and then on over the next flush."""
    model, ids, other = with_attention(tiny_llama, implementation), token_ids(1, 60), token_ids(1, 20, seed=2)
    start = QuantizedCache(model.config, SPEC)
    run(model, start, ids[:, :length], [30, *[1] * (length - 30)])
    expected = run(model, copy.deepcopy(start), other)
    for back in range(1, 9):
        cache = copy.deepcopy(start)
        run(model, cache, ids[:, length : length + back])
        cache.crop(-back)
        assert cache.get_seq_length() == length
        assert torch.equal(run(model, cache, other), expected), back
        assert deep(cache) == [0, 0]


def test_deeper_crop_is_counted_and_keeps_what_lies_below(tiny_llama: Any) -> None:
    cache, ids = QuantizedCache(tiny_llama.config, SPEC), token_ids(1, 100)
    run(tiny_llama, cache, ids, [100])
    before = [x.sum((0, 1, 3)) for x in (cache.layers[0].keys, cache.layers[1].values)]
    cache.crop(-50)
    assert deep(cache) == [1, 1] and cache.get_seq_length() == 50
    after = [x.sum((0, 1, 3)) for x in (cache.layers[0].keys, cache.layers[1].values)]
    for was, now in zip(before, after):
        assert torch.equal(now, was[:50])
    assert run(tiny_llama, cache, token_ids(1, 30, seed=2)).isfinite().all()


def test_any_crop_of_the_lossless_cache_equals_dynamic_cache(tiny_llama: Any) -> None:
    ids, other = token_ids(1, 70), token_ids(1, 12, seed=2)
    for back in (1, 8, 9, 30, 69):
        caches = [plain_cache(tiny_llama), QuantizedCache(tiny_llama.config, "exact+r8+f8+s2+k8")]
        logits = []
        for cache in caches:
            run(tiny_llama, cache, ids, [40, *[1] * 30])
            cache.crop(-back)
            logits.append(run(tiny_llama, cache, other))
        assert torch.equal(*logits), back


CROPS = {0: 60, -1: 59, -60: 0, -61: 0, -1000: 0, 60: 60, 61: 60, 1000: 60, 20: 20}
"""Argument to length afterwards, of 60 tokens: positive numbers keep that many, as in older releases."""


@pytest.mark.parametrize("argument", list(CROPS))
def test_crop_arguments(tiny_llama: Any, argument: int) -> None:
    cache = QuantizedCache(tiny_llama.config, SPEC)
    run(tiny_llama, cache, token_ids(1, 60), [60])
    cache.crop(argument)
    assert cache.get_seq_length() == CROPS[argument]
    assert cache.layers[1].keys.shape[2] == cache.layers[0].values.shape[2] == CROPS[argument]
    assert cache.layers[0].keys.sum().isfinite()


def test_cropped_to_nothing_serves_another_prompt_like_a_new_cache(tiny_llama: Any) -> None:
    used, fresh = (QuantizedCache(tiny_llama.config, SPEC) for _ in range(2))
    run(tiny_llama, used, token_ids(2, 90), [90])
    used.crop(-90)
    ids, sizes = token_ids(3, 80, seed=5), [40, *[1] * 40]
    assert torch.equal(run(tiny_llama, used, ids, sizes), run(tiny_llama, fresh, ids, sizes))


def test_reset_serves_another_prompt_like_a_new_cache(tiny_llama: Any) -> None:
    used, fresh = (QuantizedCache(tiny_llama.config, SPEC) for _ in range(2))
    run(tiny_llama, used, token_ids(2, 90), [90])
    used.crop(-50)
    used.reset()
    assert used.get_seq_length() == 0 and used.nbytes == 0 and deep(used) == [0, 0]
    ids, sizes = token_ids(1, 80, seed=5), [40, *[1] * 40]
    assert torch.equal(run(tiny_llama, used, ids, sizes), run(tiny_llama, fresh, ids, sizes))


def test_empty_cache_can_be_asked_and_cropped(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, SPEC)
    cache.crop(-3)
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.nbytes == 0
    assert cache.describe()["tokens"].tolist() == [0, 0]
    assert all(layer.is_croppable for layer in cache.layers) and not cache.is_compileable


def test_reserve_grows_for_decoding_methods_that_take_tokens_back(tiny_llama: Any) -> None:
    ids, other = token_ids(1, 200), token_ids(1, 40, seed=2)
    cache, never = (QuantizedCache(tiny_llama.config, "int4-head+r8+f16+s2+k0") for _ in range(2))
    cache.activate_past_recording()
    run(tiny_llama, cache, ids, [40, *[1] * 160])
    run(tiny_llama, never, ids[:, :100], [40, *[1] * 60])
    cache.crop(-100)
    assert deep(cache) == [0, 0]
    assert torch.equal(run(tiny_llama, cache, other), run(tiny_llama, never, other))


# --- copies ---
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: cache.fork()], ids=["deepcopy", "fork"])
def test_copies_are_independent(tiny_llama: Any, copied: Any) -> None:
    """Two continuations of one prompt equal the continuations of two prompts, in whatever order they run."""
    ids, tails = token_ids(1, 70), [token_ids(1, 40, seed=s) for s in (2, 3)]
    first = QuantizedCache(tiny_llama.config, SPEC)
    run(tiny_llama, first, ids, [70])
    second = copied(first)
    out = [run(tiny_llama, first, tails[0][:, :20]), run(tiny_llama, second, tails[1][:, :20])]
    out = [
        out[0],
        out[1],
        run(tiny_llama, first, tails[0][:, 20:]),
        run(tiny_llama, second, tails[1][:, 20:]),
    ]
    for i, tail in enumerate(tails):
        alone = QuantizedCache(tiny_llama.config, SPEC)
        run(tiny_llama, alone, ids, [70])
        expected = run(tiny_llama, alone, tail)
        assert torch.equal(torch.cat([out[i], out[i + 2]], 1), expected)
    second.reset()
    assert first.get_seq_length() == 110


def test_copy_takes_padding_for_itself(tiny_llama: Any) -> None:
    """A copy of an empty cache must not ask the original about padding."""
    original = QuantizedCache(tiny_llama.config, SPEC)
    copied = copy.deepcopy(original)
    original.set_padding([5])
    x = torch.randn(1, 2, 9, 32)
    copied.update(x, x, 0)
    assert copied.layers[0].key_store.pads == [0]


# --- handles ---
def test_handles_are_good_until_the_next_change(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, SPEC)
    x = torch.randn(1, 2, 60, 32)
    keys, values = cache.update(x, x, 0)
    assert keys is x and values is x  # the first call attends to the model's own tensors
    for change in (
        lambda: cache.update(x[:, :, :1], x[:, :, :1], 0),
        lambda: cache.crop(-1),
        lambda: cache.reorder_cache(torch.tensor([0])),
    ):
        keys, values = cache.update(x[:, :, :1], x[:, :, :1], 0)
        assert keys.sum().isfinite() and values.sum().isfinite()
        change()
        for handle in (keys, values):
            with pytest.raises(QuantKVError, match="earlier state"):
                handle.sum()


def test_handle_of_one_layer_outlives_updates_of_another(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, SPEC)
    x = torch.randn(1, 2, 60, 32)
    for layer in (0, 1):
        cache.update(x, x, layer)
    keys, _ = cache.update(x[:, :, :1], x[:, :, :1], 0)
    cache.update(x[:, :, :1], x[:, :, :1], 1)
    assert keys.sum().isfinite()


def test_gradients_are_refused_after_the_first_call(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, SPEC)
    x = torch.randn(1, 2, 9, 32)
    cache.update(x, x, 0)
    with torch.enable_grad(), pytest.raises(QuantKVError, match="no_grad"):
        cache.update(x.clone().requires_grad_(), x, 0)


def test_offloading_is_refused(tiny_llama: Any) -> None:
    cache = QuantizedCache(tiny_llama.config, SPEC)
    with pytest.raises((QuantKVError, UnsupportedError), match="offload"):
        cache.layers[0].offload()
