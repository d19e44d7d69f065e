"""Models spread over devices: each layer's store lies where the layer's keys and values come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from default_specs import A_FEW, DEFAULT_SPECS
from runs import plain_cache, token_ids, with_attention
from torch import Tensor
from transformers import AutoModelForCausalLM

from quantkv import QuantizedCache, cache_argument
from quantkv.engines import AttentionOptions, KVHandle, attend
from quantkv.models import random_model

SPEC, NEW = "int4-head+r8+f16+s2+k8", 24
MODULES = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head")


def split(first: Any, second: Any) -> dict[str, Any]:
    """A device map: layer 0 on `first`, layer 1 on `second`, all else on `first`."""
    return dict.fromkeys((*MODULES, "model.layers.0"), first) | {"model.layers.1": second}


MAPS = {
    "the word cpu": "cpu", "the word auto": "auto", "one entry": {"": "cpu"}, "by layer": split("cpu", "cpu"),
    "one layer on disk": split("cpu", "disk"), "both layers on disk": split("cpu", "cpu") | dict.fromkeys(
        ("model.layers.0", "model.layers.1"), "disk"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    random_model("random-llama").save_pretrained(folder)
    return folder


def generated(model: Any, cache: Any) -> Tensor:
    device = "cpu" if model.device.type == "meta" else model.device  # weights that wait elsewhere are "meta"
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, cache_argument(model): cache}
    return with_attention(model, "quantkv").generate(token_ids(2, 45).to(device), **settings)


def check_same_tokens(model: Any, plain: Any) -> QuantizedCache:
    """A dispatched model and the same model in one piece, each on a lossy and on a plain cache."""
    cache = QuantizedCache(model.config, SPEC)
    assert torch.equal(generated(model, cache).cpu(), generated(plain, QuantizedCache(plain.config, SPEC)))
    assert torch.equal(generated(model, plain_cache(model)).cpu(), generated(plain, plain_cache(plain)))
    assert cache.describe()["packed_keys"].tolist() == [48, 48]
    return cache


@pytest.mark.parametrize("name", MAPS)
def test_device_map_of_a_cpu_gives_the_same_tokens(name: str, saved: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved, device_map=MAPS[name], offload_folder=tmp_path)
    cache = check_same_tokens(model, random_model("random-llama"))
    assert {t.device.type for t in cache.storages()} == {"cpu"}


@pytest.mark.parametrize("way", ["dispatch_model", "cpu_offload", "disk_offload"])
def test_accelerate_hooks_give_the_same_tokens(way: str, saved: Path, tmp_path: Path) -> None:
    model, cpu = AutoModelForCausalLM.from_pretrained(saved), torch.device("cpu")
    if way == "dispatch_model":
        accelerate.dispatch_model(model, split("cpu", "disk"), main_device="cpu", offload_dir=tmp_path)
    elif way == "cpu_offload":
        accelerate.cpu_offload(model, execution_device=cpu)
    else:
        accelerate.disk_offload(model, tmp_path, execution_device=cpu)
    check_same_tokens(model, random_model("random-llama"))


def run_layers(cache: QuantizedCache, devices: list[str], length: int) -> None:
    """One call of a model whose layers lie on `devices`, attention included."""
    for index, device in enumerate(devices):
        x = torch.randn(2, 2, length, 32, dtype=torch.float16, device=device)
        query = torch.randn(2, 4, length, 32, dtype=torch.float16, device=device)
        keys, values = cache.update(x, x, index)
        assert keys.device == values.device == x.device
        if isinstance(keys, KVHandle) and isinstance(values, KVHandle):
            assert attend(query, keys.kv, values.kv, AttentionOptions(causal=True)).device == x.device


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_no_operation_assumes_a_cpu_or_reads_values_back(text: str, tiny_llama: Any) -> None:
    """Tensors on the meta device have no values: whatever waited for one, or made a tensor elsewhere, would
    raise."""
    cache, devices = QuantizedCache(tiny_llama.config, text), ["cpu", "meta"]
    for length in (200, 1, 1, 40, 1):
        run_layers(cache, devices, length)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([3, 0, 1, 0]))
    cache.batch_select_indices(torch.tensor([2, 1]))
    cache.crop(-3)
    run_layers(cache, devices, 1)
    for layer, device in zip(cache.layers, devices, strict=True):
        assert {str(t.device) for t in layer.storages()} == {device}


def gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.mark.skipif(not gpus(), reason="no CUDA device")
@pytest.mark.parametrize("text", A_FEW)
def test_layers_on_cuda_hold_their_stores_there(text: str, tiny_llama: Any) -> None:
    devices = ["cpu", "cuda:0"]
    cache = QuantizedCache(tiny_llama.config, text)
    for length in (200, 1, 40, 1):
        run_layers(cache, devices, length)
    for layer, device in zip(cache.layers, devices, strict=True):
        assert {str(t.device) for t in layer.storages()} == {device}
    assert cache.nbytes == cache.predicted_nbytes()


@pytest.mark.skipif(not gpus(), reason="no CUDA device")
def test_device_map_over_cuda_gives_the_tokens_of_one_device(saved: Path) -> None:
    last = gpus() - 1
    model = AutoModelForCausalLM.from_pretrained(
        saved, device_map=split("cuda:0", f"cuda:{last}"), dtype=torch.float64
    )
    cache = check_same_tokens(model, random_model("random-llama", dtype=torch.float64))
    for layer, device in zip(cache.layers, ("cuda:0", f"cuda:{last}"), strict=True):
        assert {str(t.device) for t in layer.storages()} == {device}


@pytest.mark.skipif(gpus() < 2, reason="fewer than two CUDA devices")
def test_automatic_map_over_two_gpus(saved: Path) -> None:
    limit = {0: "500KB", 1: "4GB"}
    model = AutoModelForCausalLM.from_pretrained(
        saved, device_map="auto", max_memory=limit, dtype=torch.float64
    )
    cache = check_same_tokens(model, random_model("random-llama", dtype=torch.float64))
    assert {str(t.device) for t in cache.storages()} <= {"cuda:0", "cuda:1"}
