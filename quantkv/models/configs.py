"""A model's configuration by the names that `load_model` takes, or from a config.json; weights stay where
they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from quantkv.errors import QuantKVError, UnsupportedError, first_line
from quantkv.models.gguf_checkpoint import kept_conversion
from quantkv.models.loading import unknown_name
from quantkv.models.names import is_random
from quantkv.models.packaged import PACKAGED_MODELS, packaged_gguf
from quantkv.models.synthetic import random_model
from quantkv.quiet import quiet


def load_config(name: str | Path, *, revision: str | None = None) -> PreTrainedConfig:
    """The configuration of a built-in model, a hub id, a folder, a config.json or a .gguf file.

    Raises QuantKVError in one line where there is none, UnsupportedError where transformers cannot read it.
    """
    name = str(name)
    if is_random(name):
        return random_model(name).config
    path = packaged_gguf(name) if name in PACKAGED_MODELS else Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path)
    if path.suffix.lower() == ".json" or path.is_dir():
        return _read(path / "config.json" if path.is_dir() else path)
    return _from_hub(name, revision)


def config_alone(name: str, *, revision: str | None = None) -> PreTrainedConfig | None:
    """The same; None where only loading the model will tell what is wrong with it. A name that is no model at
    all raises QuantKVError."""
    try:
        return load_config(name, revision=revision)
    except UnsupportedError:
        return None
    except QuantKVError:
        if Path(name).expanduser().exists():
            return None
        raise


def _from_gguf(path: Path) -> PreTrainedConfig:
    """From the header of a GGUF file, whose vocabulary takes seconds to read, or from the copy that loading
    it once has left."""
    kept = kept_conversion(path) if path.is_file() else None
    return _read(kept / "config.json") if kept else _read(path, folder=str(path.parent), gguf_file=path.name)


def _read(file: Path, *, folder: str | None = None, **options: Any) -> PreTrainedConfig:
    if not file.is_file():
        raise QuantKVError(f"no such file: {file}")
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder or str(file), **options)
    except Exception as error:  # broken files raise errors of many kinds
        raise UnsupportedError(
            f"transformers cannot read the configuration in {file}: {first_line(error)}"
        ) from error


def _from_hub(name: str, revision: str | None) -> PreTrainedConfig:
    try:
        with quiet():
            return AutoConfig.from_pretrained(name, revision=revision)
    except OSError as error:
        raise QuantKVError(
            unknown_name("no configuration for", name, "folder, .json or .gguf file", first_line(error))
        ) from error
    except (ValueError, ImportError) as error:
        raise UnsupportedError(
            f"transformers cannot read the configuration of {name!r}: {first_line(error)}"
        ) from error
