"""Inference mode may begin and end at any moment of a cache's life: it goes on as without it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import logits_in_calls, token_ids, with_attention
from torch import Tensor
from transformers import DynamicCache

from quantkv import QuantizedCache, cache_argument
from quantkv.models import random_model

SPECS = ("int4-head+r8+f16+s2+k8", "kivi-2", "exact", "int4-head+r8+f16+s2+k8+q50+sliding")
MODES = ((True, False, False), (False, True, False), (True, True, False), (False, False, True))
"""Whether the prompt, the change and what follows run in inference mode."""
Change = Callable[[QuantizedCache], QuantizedCache]


def changed(act: Callable[[QuantizedCache], Any]) -> Change:
    def change(cache: QuantizedCache) -> QuantizedCache:
        act(cache)
        return cache

    return change


def filed(cache: QuantizedCache, path: Path = Path("cache.safetensors")) -> QuantizedCache:
    cache.save(path)
    return QuantizedCache.load(path, cache.config)


CHANGES: dict[str, Change] = {
    "nothing": lambda cache: cache,
    "crop": changed(lambda cache: cache.crop(-5)),
    "deep crop": changed(lambda cache: cache.crop(-40)),
    "reorder": changed(lambda cache: cache.reorder_cache(torch.tensor([1, 0]))),
    "select": changed(lambda cache: cache.batch_select_indices(torch.tensor([1, 1]))),
    "repeat": changed(
        lambda cache: (cache.batch_repeat_interleave(2), cache.batch_select_indices(torch.tensor([0, 3])))
    ),
    "reserve": changed(lambda cache: cache.activate_past_recording()),
    "fork": lambda cache: cache.fork(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
    "file": filed,
}


@cache
def model(name: str = "random-llama") -> Any:
    return with_attention(random_model(name, hidden_size=64, intermediate_size=64), "quantkv")


def mode(inference: bool) -> Any:
    return torch.inference_mode() if inference else torch.no_grad()


def story(spec: str, change: Change, modes: tuple[bool, ...], name: str = "random-llama") -> Tensor:
    """Logits after a prompt, a change and more tokens, each in inference mode or not."""
    ids = token_ids(2, 30, seed=2)
    cache = QuantizedCache(model(name).config, spec)
    with mode(modes[0]):
        logits_in_calls(model(name), token_ids(2, 120), cache, [80, 39, 1])
    with mode(modes[1]):
        cache = change(cache)
    with mode(modes[2]):
        return logits_in_calls(model(name), ids, cache, [1] * 8 + [22]).clone()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inference_mode_may_begin_and_end_anywhere(
    spec: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = story(spec, CHANGES[change], (False, False, False))
    for modes in MODES:
        assert torch.equal(story(spec, CHANGES[change], modes), expected), modes


@pytest.mark.parametrize("change", ["nothing", "crop", "deepcopy", "pickle"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sliding_layers_too(change: str) -> None:
    expected = story(SPECS[-1], CHANGES[change], (False, False, False), "random-gemma3")
    for modes in MODES:
        assert torch.equal(story(SPECS[-1], CHANGES[change], modes, "random-gemma3"), expected), modes


@pytest.mark.parametrize("spec", SPECS[:3])
def test_generate_goes_on_after_a_prompt_in_inference_mode(spec: str) -> None:
    ids = token_ids(1, 100)
    texts = []
    for inference in (False, True):
        cache = QuantizedCache(model().config, spec)
        with mode(inference):
            logits_in_calls(model(), ids[:, :-1], cache, [99])
        options: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
        texts.append(model().generate(ids, **options, **{cache_argument(model()): cache}))
    assert torch.equal(*texts)


def test_a_plain_cache_made_in_inference_mode_is_packed_and_goes_on() -> None:
    ids, more = token_ids(2, 90), token_ids(2, 40, seed=3)
    logits = []
    for inference in (False, True):
        plain = DynamicCache(config=model().config)
        with mode(inference):
            logits_in_calls(model(), ids, plain, [90])
        cache = QuantizedCache.from_cache(plain, model().config, SPECS[0])
        with torch.no_grad():
            logits.append(logits_in_calls(model(), more, cache, [1] * 40))
    assert torch.equal(*logits)


def test_what_is_kept_remembers_no_gradients() -> None:
    """A first call with gradients leaves nothing in the cache that could not be copied."""
    cache = QuantizedCache(model().config, SPECS[0])
    logits_in_calls(model(), token_ids(2, 90), cache, [90])
    assert not any(t.requires_grad for t in cache.storages())
    copied = copy.deepcopy(cache)
    with torch.no_grad():
        logits = [logits_in_calls(model(), token_ids(2, 20, seed=3), c, [20]) for c in (cache, copied)]
    assert torch.equal(*logits)
