"""A pickled or `torch.save`d cache goes on bit-equal, here and in another process."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from default_specs import A_FEW, PRESETS
from runs import live_bytes, logits_in_calls, token_ids, with_attention
from torch import Tensor

from quantkv import QuantizedCache
from quantkv.models import random_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("no_gradients"),
]
SPECS = [*PRESETS, *A_FEW, "int4-head+r8+f16+s2+k8+q50", "int4-head+l0.exact+l1.fp16"]


@cache
def model(name: str = "random-llama") -> Any:
    return with_attention(random_model(name, hidden_size=64, intermediate_size=64), "quantkv")


def filled(spec: str, name: str = "random-llama") -> QuantizedCache:
    cache = QuantizedCache(model(name).config, spec)
    logits_in_calls(model(name), token_ids(2, 100), cache, [70, 29, 1])
    return cache


def going_on(cache: Any, seed: int = 4, name: str = "random-llama") -> Tensor:
    return logits_in_calls(model(name), token_ids(2, 40, seed=seed), cache, [1] * 30 + [10])


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def saved(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("through", [pickled, saved])
@pytest.mark.parametrize("spec", SPECS)
def test_it_goes_on_as_the_original_would(spec: str, through: Any) -> None:
    cache = filled(spec)
    copy = through(cache)
    assert copy.nbytes == live_bytes(copy) == cache.nbytes
    assert copy.describe().equals(cache.describe())
    assert copy.engine == cache.engine
    assert torch.equal(going_on(copy), going_on(cache))
    assert copy.nbytes == cache.nbytes == cache.predicted_nbytes()


def test_an_empty_cache_and_one_with_sliding_layers() -> None:
    empty = pickled(QuantizedCache(model().config, "int4-head"))
    assert torch.equal(going_on(empty), going_on(QuantizedCache(model().config, "int4-head")))
    for spec in ("int4-head+sliding", "int4-head"):
        cache = filled(spec, "random-gemma3")
        copy = pickled(cache)
        assert torch.equal(*(going_on(c, name="random-gemma3") for c in (copy, cache)))


@pytest.mark.parametrize("through", [pickled, saved])
def test_forks_pickled_together_go_on_apart(through: Any) -> None:
    cache = filled("int4-head+r8+f16+s2+k8")
    fork = cache.fork()
    going_on(fork, seed=7)
    copies = through([cache, fork])
    for seed in (4, 5):
        assert all(torch.equal(going_on(c, seed), going_on(o, seed)) for c, o in zip(copies, (cache, fork)))


def test_a_copy_takes_padding_for_itself() -> None:
    """A copy of an empty cache must not ask the original about padding."""
    original = QuantizedCache(model().config, "int4-head")
    copy = pickled(original)
    original.set_padding([5, 0])
    copy.set_padding([0, 3])
    x = torch.randn(2, 2, 9, 32)
    copy.update(x, x, 0)
    assert copy.layers[0].key_store.pads == [0, 3]


CHILD = """
import pickle, sys, torch
cache, ids = pickle.load(open(sys.argv[1], "rb"))
x = torch.randn(2, 2, 50, 32, generator=torch.Generator().manual_seed(0))
for part in x.split([1] * 40 + [10], 2):
    keys, values = cache.update(part, part, 0)
pickle.dump((keys + 0, values + 0, cache.nbytes), open(sys.argv[2], "wb"))
"""


@pytest.mark.slow
def test_another_process_goes_on_bit_equal(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    cache = filled("int4-head+r8+f16+s2+k8")
    there.write_bytes(pickle.dumps((cache, None)))
    subprocess.run([sys.executable, "-c", CHILD, there, back], check=True)
    x = torch.randn(2, 2, 50, 32, generator=torch.Generator().manual_seed(0))
    for part in x.split([1] * 40 + [10], 2):
        keys, values = cache.update(part, part, 0)
    theirs = pickle.loads(back.read_bytes())
    assert torch.equal(theirs[0], keys + 0)
    assert torch.equal(theirs[1], values + 0)
    assert theirs[2] == cache.nbytes
