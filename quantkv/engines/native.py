"""The module of native kernels: whether it is here, and which build of it runs.

`QUANTKV_NATIVE=0` leaves it alone; `QUANTKV_ISA=v2|v3|v4` picks a build other than the best that the
processor can run.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from typing import Any

import torch

from quantkv.errors import QuantKVError

FLOATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Dtypes that the kernels read and write, by the numbers they know them by."""
_OFF = ("0", "false", "off")


@cache
def kernels() -> Any:
    """The module of kernels, or None (said once) where it is switched off or was not built."""
    if os.environ.get("QUANTKV_NATIVE", "1").lower() in _OFF:
        return None
    try:
        return import_module("quantkv._native")
    except ImportError as error:
        warnings.warn(
            f"quantkv's native engine is not there ({error}): attention runs on the PyTorch engine, which is "
            "slower than fp16. Install quantkv where a C++17 compiler is found, or set QUANTKV_NATIVE=0.",
            stacklevel=2,
        )
        return None


@cache
def isa() -> str | None:
    """The build that runs: `v2`, `v3`, `v4` of x86-64, or `base` elsewhere; None without the engine."""
    module = kernels()
    if module is None:
        return None
    usable, wanted = module.usable_isas(), os.environ.get("QUANTKV_ISA")
    if wanted is None:
        return usable[-1]
    if wanted not in usable:
        raise QuantKVError(
            f"QUANTKV_ISA={wanted}: not built or not on this machine; legal: {', '.join(usable)}"
        )
    return wanted
