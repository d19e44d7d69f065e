"""Text to measure on, always with the hash that goes into the result row.

``python-docs`` is the reference manual that ships inside Python: real prose of a hundred thousand tokens that
needs no network. It differs between Python versions, which is why rows are compared by hash, never by name.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantkv.errors import QuantKVError, first_line

HF_KEYS = ("hf", "name", "split", "column", "revision")
BUILT_IN = ("python-docs", "wikitext-2")
LEGAL = "python-docs, wikitext-2, a text file, or {hf: ID, name: CONFIG, split: test, column: text}"
WIKITEXT_2 = {"hf": "Salesforce/wikitext", "name": "wikitext-2-raw-v1", "split": "test", "column": "text"}


@dataclass(frozen=True)
class Text:
    """A text under its requested ``name``, with the ``source`` it was read from."""

    name: str
    text: str
    sha256: str
    source: str


def load_text(name: str | Path | dict[str, Any] | Text) -> Text:
    """Read a text by name, path or ``{hf: ...}``; documents of a data set are joined by blank lines. A text
    that is loaded already comes back."""
    if isinstance(name, Text):
        return name
    if isinstance(name, dict):
        return _from_dataset(name, label=_label(name))
    if not isinstance(name, str | Path):
        raise QuantKVError(f"no text: {name!r}; legal: {LEGAL}")
    if name == "python-docs":
        return _python_docs()
    if name == "wikitext-2":
        return _from_dataset(WIKITEXT_2, label="wikitext-2")
    return _from_file(Path(name).expanduser(), label=str(name))


def tokenize(text: Text | str, tokenizer: Any) -> torch.Tensor:
    """Token ids ``[T]`` without special tokens; windows add their own BOS."""
    if tokenizer is None:
        raise QuantKVError("this model came without a tokenizer, so text cannot be tokenized")
    plain = text.text if isinstance(text, Text) else text
    ids = tokenizer(plain, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def bos_id(tokenizer: Any) -> int | None:
    """The token a window starts with, or ``None`` where the model was trained without one."""
    return getattr(tokenizer, "bos_token_id", None)


def _python_docs() -> Text:
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[key] for key in sorted(topics))
    return _text("python-docs", text, f"pydoc_data.topics of Python {platform.python_version()}")


def _from_file(path: Path, label: str) -> Text:
    if not os.path.isfile(path):  # which says no to names that no file can have
        raise QuantKVError(f"no such text file: {path}; legal: {LEGAL}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuantKVError(f"cannot read {path} as UTF-8 text: {error}") from error
    return _text(label, text, str(path))


def _from_dataset(where: dict[str, Any], label: str) -> Text:
    _check_keys(where)
    column, split = where.get("column", "text"), where.get("split", "test")
    rows = _load_dataset(where, split)
    if column not in rows.column_names:
        raise QuantKVError(f"{label} has no column {column!r}; its columns: {', '.join(rows.column_names)}")
    documents = list(rows[column])
    if not all(isinstance(document, str) for document in documents):
        raise QuantKVError(f"{label}: column {column!r} holds no text")
    return _text(label, "\n\n".join(documents), f"{label} split={split} column={column}")


def _load_dataset(where: dict[str, Any], split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise QuantKVError("text from a hub needs `pip install datasets`") from error
    try:
        return load_dataset(where["hf"], where.get("name"), split=split, revision=where.get("revision"))
    except Exception as error:  # the library raises many kinds for a wrong id, split, config or no network
        raise QuantKVError(
            f"cannot load the data set {_label(where)} (split {split}): {first_line(error)}"
        ) from error


def _check_keys(where: dict[str, Any]) -> None:
    unknown = sorted(set(where) - set(HF_KEYS))
    if unknown or not where.get("hf"):
        problem = f"unknown key {unknown[0]!r}" if unknown else "the key hf is missing"
        raise QuantKVError(f"text: {problem}; legal keys: {', '.join(HF_KEYS)}")


def _label(where: dict[str, Any]) -> str:
    return "/".join(str(where[key]) for key in ("hf", "name") if where.get(key))


def _text(name: str, text: str, source: str) -> Text:
    if not text.strip():
        raise QuantKVError(f"the text {name} is empty")
    return Text(name, text, hashlib.sha256(text.encode()).hexdigest(), source)
