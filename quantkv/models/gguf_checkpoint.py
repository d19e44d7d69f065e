"""GGUF files: dequantized once by transformers (slow), kept as an ordinary checkpoint, reloaded in a blink.

The kept copy is float32 because the values of 4-bit blocks have no exact form in 16 bits. It is named by the
file's hash and written under a temporary name, so neither a kill nor two processes at once leave half a copy.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.models.completeness import check_loaded
from quantkv.models.packaged import cache_folder, temporary_folder
from quantkv.quiet import quiet

CONVERSION = 2
SOURCE_FILE = "quantkv_source.json"
TOKENIZER_PROBE = "Déjà vu: the capital of France is Paris (1889)"
STALE_SECONDS = 24 * 3600
ROPE_TENSOR = re.compile(r"rope_(freqs|factors_\w+)\.weight$")


def converted_folder(path: Path) -> Path:
    """The checkpoint folder made from a GGUF file, converting it if this is the first time."""
    if not path.is_file():
        raise QuantKVError(f"no such GGUF file: {path}")
    digest = _sha256(path)
    folder = _place(path, digest)
    if not (folder / SOURCE_FILE).is_file():
        _remove_stale(folder.parent)
        print(f"quantkv: converting {path.name} once, kept in {folder}", file=sys.stderr, flush=True)
        with temporary_folder(folder.parent) as scratch:
            _convert(path, digest, scratch / folder.name)
            _publish(scratch / folder.name, folder)
    return folder


def kept_conversion(path: Path) -> Path | None:
    """The checkpoint folder of an earlier conversion, if there was one."""
    folder = _place(path, _sha256(path))
    return folder if (folder / SOURCE_FILE).is_file() else None


def read_source(folder: Path) -> dict[str, str]:
    """What the conversion recorded: ``sha256`` of the file, its ``weights`` precision, and ``left_out``."""
    return json.loads((folder / SOURCE_FILE).read_text())


def gguf_precision(path: Path) -> str:
    """``4-bit GGUF (Q4_1)``: the type the file declares, else that of most of its elements."""
    reader = gguf.GGUFReader(str(path))
    field = reader.fields.get("general.file_type")
    if field:
        name = gguf.LlamaFileType(int(field.contents())).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    else:
        elements: Counter[str] = Counter()
        for tensor in reader.tensors:
            elements[tensor.tensor_type.name] += int(tensor.n_elements)
        name = elements.most_common(1)[0][0]
    bits = re.search(r"\d+", name)
    return f"{bits.group()}-bit GGUF ({name})" if bits else f"GGUF ({name})"


def _place(path: Path, digest: str) -> Path:
    return cache_folder() / "converted" / f"{path.stem}-{digest[:16]}-v{CONVERSION}"


def _convert(path: Path, digest: str, target: Path) -> None:
    with quiet(), _one_reader():
        model, tokenizer, left_out = _dequantize(path)
        source = {"file": path.name, "sha256": digest, "weights": gguf_precision(path), "left_out": left_out}
        try:
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
            (target / SOURCE_FILE).write_text(json.dumps(source, indent=1))
        except OSError as error:
            trouble = f"cannot keep the converted model in {target.parent} ({error})"
            raise QuantKVError(f"{trouble}; set QUANTKV_CACHE to a folder with room") from error
        if not _tokenizer_survived(target):
            trouble = f"transformers {transformers.__version__} breaks the tokenizer of {path}"
            raise UnsupportedError(f"{trouble}; convert it with 5.6.2 or later")


def _dequantize(path: Path) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and what transformers left out."""
    folder, name = str(path.parent), path.name
    try:
        reader = gguf.GGUFReader(str(path))
        _refuse_part(path, reader)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        config = AutoConfig.from_pretrained(folder, gguf_file=name)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except QuantKVError:
        raise
    except Exception as error:  # the libraries below raise many kinds for a broken or unknown file
        raise UnsupportedError(f"transformers cannot read the GGUF file {path}: {error}") from error
    check_loaded(str(path), model, info)
    _check_positions(path, reader, model.config)
    _forget_quantization(model)
    return model, tokenizer, _left_out(reader, model)


def _refuse_part(path: Path, reader: Any) -> None:
    """transformers reads one file, and draws at random what lies in the others."""
    field = reader.fields.get("split.count")
    count = int(field.contents()) if field else 1
    if count > 1:
        hint = "join them with llama-gguf-split --merge"
        raise QuantKVError(f"{path} is one of {count} files of a model; {hint}")


def _left_out(reader: Any, model: Any) -> str:
    """transformers drops tensors that it has no name for, without a word."""
    held = sum(int(t.n_elements) for t in reader.tensors if not ROPE_TENSOR.match(t.name))
    taken = sum(parameter.numel() for parameter in model.parameters())
    return f"it holds {held:,} weights, transformers takes {taken:,} of them" if held > taken else ""


def _check_positions(path: Path, reader: Any, config: Any) -> None:
    """Raise where a tensor or a setting of the file scales rotary positions and the model does not."""
    fields = {name: field for name, field in reader.fields.items() if name.endswith(".rope.scaling.type")}
    scaled = [name for name, field in fields.items() if field.contents() != "none"]
    scaled += [tensor.name for tensor in reader.tensors if ROPE_TENSOR.match(tensor.name)]
    if scaled and not _scales_positions(config):
        trouble = (
            f"{path} scales its positions ({scaled[0]}), which transformers does not read from such files"
        )
        raise UnsupportedError(f"{trouble}; load the original checkpoint")


def _scales_positions(config: Any) -> bool:
    """Whether the rotary positions are scaled in layers of any kind."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    return any(part.get("rope_type", "default") != "default" for part in kinds)


def _tokenizer_survived(folder: Path) -> bool:
    """Older releases save some tokenizers so that they come back broken, and say nothing."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(TOKENIZER_PROBE, add_special_tokens=False)["input_ids"]
    except Exception:  # the Rust library raises nothing more specific
        return False
    return tokenizer.decode(ids).strip() == TOKENIZER_PROBE


@contextlib.contextmanager
def _one_reader() -> Iterator[None]:
    """Parsing the vocabulary takes seconds, and transformers does it at every call: here it is done once."""
    reader = gguf.GGUFReader
    gguf.GGUFReader = functools.lru_cache(maxsize=1)(reader)
    try:
        yield
    finally:
        gguf.GGUFReader = reader


def _forget_quantization(model: Any) -> None:
    """transformers refuses to save what came from GGUF, although the tensors are plain float32 by now."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _publish(finished: Path, folder: Path) -> None:
    try:
        finished.rename(folder)
    except OSError:  # another process was first; its copy is as good
        if not (folder / SOURCE_FILE).is_file():
            raise


def _remove_stale(parent: Path) -> None:
    """Scratch folders of killed conversions; those of a day ago belong to nobody."""
    for folder in parent.glob(".unfinished-*"):
        if time.time() - folder.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
