"""Bytes of weights that a checkpoint stores quantized, from its `quantization_config`.

Codes with their scales, zeros and indices are counted as each method lays them out; what it leaves alone
(embeddings, norms, the head as a rule, modules it names) stays in the model's dtype.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from quantkv.models.identity import Settings, quantization_method, quantization_settings

WHOLE = 0
"""A side of a block that is as long as the weight's."""
SKIPPED = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "skip_modules", "ignored_layers")


@dataclass(frozen=True)
class Scheme:
    """`bits` of a number, `shared` bits for each block of rows × columns, `column` bits for each column."""

    bits: float
    shared: float
    block: tuple[int, int]
    column: float = 0
    linear: bool = True
    experts: bool = True

    def nbytes(self, rows: int, columns: int) -> int:
        high, wide = (side or length for side, length in zip(self.block, (rows, columns)))
        blocks = ceil(rows / high) * ceil(columns / wide)
        return ceil((self.bits * rows * columns + self.shared * blocks + self.column * columns) / 8)


def quantization_of(config: Any) -> Settings | None:
    """The `quantization_config` as a mapping; None where weights are stored, or held, as they are."""
    settings = quantization_settings(config)
    return None if settings is None or settings.get("dequantize") else settings


def stored_nbytes(model: torch.nn.Module, settings: Settings) -> int | None:
    """Bytes of all parameters and buffers of a model built without quantization, had it been stored with it;
    None where the method, or what it says, is not known here."""
    method = quantization_method(settings)
    scheme = METHODS[method](settings) if method in METHODS else None
    if scheme is None:
        return None
    total = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    for weight, rows, columns in _packed(model, settings, scheme):
        matrices = weight.numel() // (rows * columns)
        total += matrices * scheme.nbytes(rows, columns) - weight.nbytes
    return total


def _packed(
    model: torch.nn.Module, settings: Settings, scheme: Scheme
) -> Iterator[tuple[torch.Tensor, int, int]]:
    """The weights that are quantized, as rows × columns (several matrices for the experts of a layer)."""
    kept = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    skipped = _skipped(model, settings)
    for name, module in model.named_modules():
        if any(_matches(name, pattern) for pattern in skipped):
            continue
        if scheme.linear and isinstance(module, torch.nn.Linear | Conv1D) and id(module.weight) not in kept:
            sides = module.weight.shape
            yield module.weight, *(sides[::-1] if isinstance(module, Conv1D) else sides)
        elif scheme.experts and name.endswith("experts"):
            transposed = getattr(module, "is_transposed", False)
            for weight in (p for p in module.parameters(recurse=False) if p.dim() == 3):
                sides = weight.shape[1:]
                yield weight, *(sides[::-1] if transposed else sides)


def _skipped(model: Any, settings: Settings) -> list[str]:
    """Names and patterns of modules left alone. The head is one of them where a configuration names none, and
    always for methods that leave it to a switch of their own."""
    named = next((settings[key] for key in SKIPPED if settings.get(key)), None)
    switch = quantization_method(settings) in ("awq", "gptq", "auto-round") and not settings.get("lm_head")
    head = model.get_output_embeddings()
    heads = [name for name, module in model.named_modules() if module is head]
    return [*(named or []), *(heads if named is None or switch else [])]


def _matches(name: str, pattern: str) -> bool:
    """Whether a module, or one around it, is meant: by its path or the end of it, or by a regular expression
    from the start of its path."""
    if f".{pattern}." in f".{name}.":
        return True
    try:
        return re.match(rf"(?:{pattern.removeprefix('re:')})(?:(?<=\.)|(?=\.|$))", name) is not None
    except re.error:
        return False


def _groups(settings: Settings, default: int = 128) -> tuple[int, int]:
    """Groups along the columns; -1 is a whole row."""
    size = settings.get("group_size")
    return 1, max(WHOLE, default if size is None else int(size))


def _integers(settings: Settings, column: float = 0) -> Scheme | None:
    """Codes, a packed zero as wide as a code and a 16-bit scale for each group."""
    bits = settings.get("bits") or settings.get("w_bit")
    return Scheme(bits, 16 + bits, _groups(settings), column) if bits else None


def _bitsandbytes(settings: Settings) -> Scheme | None:
    if settings.get("load_in_4bit"):
        twice = settings.get("bnb_4bit_use_double_quant")
        return Scheme(4, 8 + 32 / 256 if twice else 32, (1, 64), experts=False)
    return Scheme(8, 32, (1, WHOLE), experts=False) if settings.get("load_in_8bit") else None


def _fp8(settings: Settings) -> Scheme | None:
    rows, columns = settings.get("weight_block_size") or (WHOLE, WHOLE)
    return Scheme(8, 32, (rows, columns)) if settings.get("expert_dtype", "fp8") == "fp8" else None


def _compressed(settings: Settings) -> Scheme | None:
    """One scheme for all layers; several of them are not known here."""
    groups = (settings.get("config_groups") or {}).values()
    schemes = [group["weights"] for group in groups if group.get("weights")]
    if not schemes or any(other != schemes[0] for other in schemes):
        return None
    own = schemes[0]
    blocks = {"tensor": (WHOLE, WHOLE), "channel": (1, WHOLE), "block": own.get("block_structure")}
    block = blocks.get(own.get("strategy"), (1, own.get("group_size") or WHOLE))
    scale = 8 if "fp4" in str(settings.get("format")) else 16
    zero = 0 if own.get("symmetric", True) else own["num_bits"]
    return Scheme(own["num_bits"], scale + zero, tuple(block)) if block else None


def _torchao(settings: Settings) -> Scheme | None:
    kind = settings.get("quant_type")
    kind = kind.get("default", kind) if isinstance(kind, dict) else kind
    name, data = (kind.get("_type"), kind.get("_data")) if isinstance(kind, dict) else (kind, settings)
    found = re.search(r"(?:int|float)(\d)_?weight", str(name).lower())
    if found is None:
        return None
    narrow = found[1] == "4"
    return Scheme(int(found[1]), 32, _groups(data or {}) if narrow else (1, WHOLE), experts=False)


def _hqq(settings: Settings) -> Scheme | None:
    weights = (settings.get("quant_config") or {}).get("weight_quant_params")
    return Scheme(weights["nbits"], 32, _groups(weights, 64), experts=False) if weights else None


def _quanto(settings: Settings) -> Scheme | None:
    found = re.fullmatch(r"q?(?:int|float)([248])(?:_.*)?", str(settings.get("weights")))
    if found is None:
        return None
    shared, columns = (16, WHOLE) if found[1] == "8" else (32, 128)
    return Scheme(int(found[1]), shared, (1, columns), experts=False)


METHODS: dict[str, Callable[[Settings], Scheme | None]] = {
    "mxfp4": lambda settings: Scheme(4, 8, (1, 32), linear=False),
    "awq": _integers,
    "gptq": partial(_integers, column=32),
    "auto-round": _integers,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "fbgemm_fp8": lambda settings: Scheme(8, 32, (1, WHOLE)),
    "compressed-tensors": _compressed,
    "torchao": _torchao,
    "hqq": _hqq,
    "quanto": _quanto,
    "eetq": lambda settings: Scheme(8, 16, (1, WHOLE), experts=False),
    "bitnet": lambda settings: Scheme(2, 16, (WHOLE, WHOLE)),
}
