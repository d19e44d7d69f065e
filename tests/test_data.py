from __future__ import annotations

import hashlib
import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch

from quantkv.data import Text, bos_id, load_text, tokenize
from quantkv.errors import QuantKVError
from quantkv.models import byte_tokenizer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set folder of two documents; what the library caches goes beside it."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = tmp_path / "data"
    data.mkdir()
    lines = [{"body": "first", "year": 1}, {"body": "second", "year": 2}]
    (data / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return data


def test_python_docs_is_every_topic_in_order() -> None:
    text = load_text("python-docs")
    assert text.text == "\n\n".join(value for _, value in sorted(topics.items()))
    assert text.sha256 == hashlib.sha256(text.text.encode()).hexdigest()
    assert text.source.startswith("pydoc_data.topics of Python 3.")
    assert len(text.text) > 300_000


def test_file_is_read_as_utf8_with_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("é\n".encode())
    text = load_text(str(path))
    assert (text.name, text.text) == (str(path), "é\n")
    assert text.sha256 == hashlib.sha256(b"\xc3\xa9\n").hexdigest()
    assert load_text(path).sha256 == text.sha256


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\xfa", "as UTF-8"), (b" \n", "is empty"), (None, "no such text file.*legal")],
)
def test_unusable_file_is_one_clear_message(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(QuantKVError, match=message):
        load_text(path)


def test_documents_of_a_data_set_are_joined_by_blank_lines(folder: Path) -> None:
    text = load_text({"hf": str(folder), "split": "test", "column": "body"})
    assert text.text == "first\n\nsecond"
    assert text.source == f"{folder} split=test column=body"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": "txt"}, "no column 'txt'; its columns: body, year"),
        ({"column": "year"}, "column 'year' holds no text"),
        ({"split": "dev"}, r"split dev"),
        ({"colum": "body"}, "unknown key 'colum'; legal keys: hf, name, split, column, revision"),
        ({"hf": ""}, "the key hf is missing"),
    ],
)
def test_wrong_data_set_settings_name_the_legal_ones(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(QuantKVError, match=message):
        load_text({"hf": str(folder), "split": "test", "column": "body"} | change)


def test_data_set_out_of_reach_is_one_clear_message() -> None:
    with pytest.raises(QuantKVError, match="cannot load the data set nobody/nothing"):
        load_text({"hf": "nobody/nothing"})


class _Tokenizer:
    bos_token_id = 7

    def __call__(self, text: str, *, add_special_tokens: bool = True, **options: Any) -> dict[str, list[int]]:
        start = [self.bos_token_id] if add_special_tokens else []
        return {"input_ids": start + [ord(character) for character in text]}


def test_tokens_come_without_special_ones() -> None:
    ids = tokenize(Text("t", "ab", "", ""), _Tokenizer())
    assert ids.dtype == torch.long
    assert ids.tolist() == [97, 98]
    assert tokenize("ab", byte_tokenizer()).tolist() == [97, 98]


def test_bos_is_the_tokenizers_or_none() -> None:
    assert bos_id(_Tokenizer()) == 7
    assert bos_id(byte_tokenizer()) is None
    assert bos_id(None) is None


def test_model_without_tokenizer_cannot_tokenize() -> None:
    with pytest.raises(QuantKVError, match="without a tokenizer"):
        tokenize("text", None)


def test_smollm2_tokens_start_with_no_bos(smollm2: tuple[Any, Any]) -> None:
    _, tokenizer = smollm2
    assert tokenize("The capital of France is", tokenizer).tolist() == [504, 3575, 282, 4649, 314]
    assert bos_id(tokenizer) == 1
