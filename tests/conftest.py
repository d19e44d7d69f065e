"""Models shared by the tests: tiny random ones, cheap enough to make anew each time, and the real SmolLM2."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the hub library is imported

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import later

from quantkv.errors import QuantKVError
from quantkv.models import load_model, random_model
from quantkv.models.packaged import packaged_gguf

SMOLLM2 = "smollm2-135m-instruct-q4_1"
pytest_plugins = ["pace", "pytester"]
torch.set_num_threads(1)  # tiny models: on a busy machine a second thread costs ten times what it saves
# A shell that starts the tests in the background has them, and all processes they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: dict[str, int] = {}
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker("real")
        if later(item.nodeid, seen) or item.get_closest_marker("real") or item.get_closest_marker("slow"):
            item.add_marker("second")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def tiny_llama() -> Any:
    return random_model("random-llama")


@pytest.fixture
def tiny_qwen2() -> Any:
    return random_model("random-qwen2")


@pytest.fixture
def tiny_mistral() -> Any:
    return random_model("random-mistral")


@pytest.fixture
def tiny_gemma3() -> Any:
    return random_model("random-gemma3")


@pytest.fixture
def model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for fetched and converted models."""
    monkeypatch.setenv("QUANTKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps measure in the process of the test: workers cost seconds, which other tests pay."""
    import quantkv.sweep.process
    from quantkv.sweep.local import LocalMeasure

    monkeypatch.setattr(quantkv.sweep.process, "ProcessMeasure", LocalMeasure)


@pytest.fixture(scope="session")
def _smollm2_once() -> tuple[Any, Any]:
    try:
        packaged_gguf(SMOLLM2)
    except QuantKVError as error:
        pytest.skip(f"SmolLM2 is neither installed nor to be fetched: {error}")
    return load_model(SMOLLM2)


@pytest.fixture
def smollm2(_smollm2_once: tuple[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """``(model, tokenizer)`` in float32; a changed attention implementation is put back afterwards."""
    model, tokenizer = _smollm2_once
    before = model.config._attn_implementation
    yield model, tokenizer
    if model.config._attn_implementation != before:
        model.set_attn_implementation(before)
