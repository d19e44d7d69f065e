"""``load_model``: one name in, a model ready for measurement and its tokenizer out.

A name is a hub id, a local folder, a ``.gguf`` file, a packaged model or a ``random-`` model. The model comes
back in evaluation mode without gradients and knows where it came from (``model_identity``). ``load_config``
takes the same names and leaves weights where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from quantkv.errors import QuantKVError, UnsupportedError, first_line
from quantkv.models.completeness import ADAPTER_FILE, check_loaded, refuse_adapter, say, say_heard
from quantkv.models.gguf_checkpoint import converted_folder, kept_conversion, read_source
from quantkv.models.identity import Source, describe_precision
from quantkv.models.names import dtype_named, is_built_in, is_random
from quantkv.models.packaged import PACKAGED_MODELS, packaged_gguf
from quantkv.models.synthetic import RANDOM_MODELS, byte_tokenizer, random_model
from quantkv.quiet import quiet
from quantkv.wording.suggestions import nearest

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")


def load_model(
    name: str | Path,
    *,
    dtype: str | torch.dtype | None = "float32",
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    attn: str | None = None,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer (``None`` where the model comes without one).

    ``dtype=None`` keeps the checkpoint's own; ``attn`` is an attention implementation of transformers, or
    ``quantkv``; ``seed`` draws the weights of ``random-`` models.
    """
    name = str(name)
    _check_options(name, device, device_map, revision)
    torch_dtype = _as_dtype(dtype)
    if is_random(name):
        model, tokenizer, source = _load_random(name, torch_dtype, seed)
    elif name in PACKAGED_MODELS or name.lower().endswith(".gguf"):
        model, tokenizer, source = _load_gguf(name, torch_dtype, device_map)
    else:
        model, tokenizer, source = _load_pretrained(name, torch_dtype, device_map, revision)
    model._quantkv_source = source
    return _prepare(model, device, attn), tokenizer


def load_config(name: str | Path, *, revision: str | None = None) -> PreTrainedConfig:
    """The configuration of a built-in model, a hub id, a folder, a config.json or a .gguf file.

    Raises QuantKVError in one line where there is none, UnsupportedError where transformers cannot read it.
    """
    name = str(name)
    if is_random(name):
        return random_model(name).config
    path = packaged_gguf(name) if name in PACKAGED_MODELS else Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        return _config_in_gguf(path)
    if path.suffix.lower() == ".json" or path.is_dir():
        return _read_config(path / "config.json" if path.is_dir() else path)
    return _config_on_hub(name, revision)


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


def model_names() -> list[str]:
    """The built-in names; hub ids, folders and ``.gguf`` files come on top."""
    return [*PACKAGED_MODELS, *RANDOM_MODELS]


def _load_random(name: str, dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, Source]:
    model = random_model(name, seed=seed, dtype=dtype or torch.float32)
    return model, byte_tokenizer(), Source(name, f"seed-{seed}", "random float32")


def _load_gguf(name: str, dtype: torch.dtype | None, device_map: Any) -> tuple[Any, Any, Source]:
    path = packaged_gguf(name) if name in PACKAGED_MODELS else Path(name).expanduser()
    folder = converted_folder(path)
    record = read_source(folder)
    try:
        model, tokenizer = _from_pretrained(str(folder), dtype, device_map, None)
    except (OSError, QuantKVError, SafetensorError) as error:
        trouble = f"the converted copy of {name} is damaged ({first_line(error)})"
        raise QuantKVError(f"{trouble}; delete that folder to have it made again") from error
    if record["left_out"]:
        say(f"{name}: {record['left_out']}")
    return model, tokenizer, Source(name, f"sha256:{record['sha256']}", record["weights"])


def _load_pretrained(
    name: str, dtype: torch.dtype | None, device_map: Any, revision: str | None
) -> tuple[Any, Any, Source]:
    local = Path(name).expanduser()
    if local.is_dir():
        name = str(local)
        if (local / ADAPTER_FILE).is_file():
            refuse_adapter(name)
        if not (local / "config.json").is_file():
            raise QuantKVError(f"{local} is no model folder: it has no config.json")
    elif _looks_like_path(name):
        raise QuantKVError(f"no such model folder: {name}")
    elif "/" not in name and nearest(name, model_names(), cutoff=0.8):
        raise QuantKVError(_unknown(name, "no such name"))
    try:
        with quiet():
            weights = describe_precision(AutoConfig.from_pretrained(name, revision=revision))
        model, tokenizer = _from_pretrained(name, dtype, device_map, revision)
    except QuantKVError:
        raise
    except (OSError, SafetensorError) as error:
        reason, folder = first_line(error), f"cannot load the model folder {name}"
        raise QuantKVError(f"{folder}: {reason}" if local.is_dir() else _unknown(name, reason)) from error
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"transformers cannot load {name!r}: {first_line(error)}") from error
    return model, tokenizer, Source(name, getattr(model.config, "_commit_hash", None), weights)


def _from_pretrained(
    name: str, dtype: torch.dtype | None, device_map: Any, revision: str | None
) -> tuple[Any, Any]:
    """The model, whole, and its tokenizer."""
    with quiet() as heard:
        model, info = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype or "auto",
            device_map=device_map,
            revision=revision,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # check_loaded refuses them by name
        )
        bare = Path(name).is_dir() and not any((Path(name) / file).is_file() for file in TOKENIZER_FILES)
        tokenizer = None if bare else AutoTokenizer.from_pretrained(name, revision=revision)
    check_loaded(name, model, info)
    say_heard(name, heard)
    return model, tokenizer


def _prepare(model: Any, device: str | torch.device | None, attn: str | None) -> Any:
    if device is not None:
        model = model.to(_as_device(device))
    if attn is not None:
        _set_attention(model, attn)
    return model.eval().requires_grad_(False)


def _set_attention(model: Any, attn: str) -> None:
    try:
        model.set_attn_implementation(attn)
    except (ValueError, ImportError, KeyError) as error:
        trouble = f"attention {attn!r} cannot be used ({first_line(error)})"
        legal = "quantkv, sdpa, eager, or another that transformers knows"
        raise QuantKVError(f"{trouble}; legal: {legal}") from error


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    return dtype if isinstance(dtype, torch.dtype) else dtype_named(dtype, "auto")


def _as_device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise QuantKVError(f"device {str(device)!r} cannot be used: {first_line(error)}") from error
    return chosen


def _check_options(name: str, device: Any, device_map: Any, revision: str | None) -> None:
    if device is not None and device_map is not None:
        raise QuantKVError("give device or device_map, not both")
    if revision is not None and (is_built_in(name) or name.lower().endswith(".gguf")):
        raise QuantKVError(f"{name} has no revisions; revision is for hub ids")
    if device_map is not None and is_random(name):
        raise QuantKVError(f"{name} is built in memory; use device, not device_map")


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name


def _unknown(name: str, reason: str, trouble: str = "cannot load model", local: str = "folder") -> str:
    """``cannot load model 'gtp2': …``: what a name is not (``local``: no file of which kind), and why it is
    no hub id either."""
    close, names = nearest(name, model_names()), ", ".join(model_names())
    hint = f" (did you mean {close!r}?)" if close else ""
    return f"{trouble} {name!r}{hint}: not a built-in name ({names}), no {local}, and as a hub id: {reason}"


def _config_in_gguf(path: Path) -> PreTrainedConfig:
    """From the header of a GGUF file, whose vocabulary takes seconds to read, or from the copy that loading
    it once has left."""
    kept = kept_conversion(path) if path.is_file() else None
    return (
        _read_config(kept / "config.json")
        if kept
        else _read_config(path, folder=str(path.parent), gguf_file=path.name)
    )


def _read_config(file: Path, *, folder: str | None = None, **options: Any) -> PreTrainedConfig:
    if not file.is_file():
        raise QuantKVError(f"no such file: {file}")
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder or str(file), **options)
    except Exception as error:  # broken files raise errors of many kinds
        trouble = f"transformers cannot read the configuration in {file}"
        raise UnsupportedError(f"{trouble}: {first_line(error)}") from error


def _config_on_hub(name: str, revision: str | None) -> PreTrainedConfig:
    try:
        with quiet():
            return AutoConfig.from_pretrained(name, revision=revision)
    except OSError as error:
        local = "folder, .json or .gguf file"
        raise QuantKVError(_unknown(name, first_line(error), "no configuration for", local)) from error
    except (ValueError, ImportError) as error:
        trouble = f"transformers cannot read the configuration of {name!r}"
        raise UnsupportedError(f"{trouble}: {first_line(error)}") from error
