"""The version of quantkv, which stands in every row, those of its methods, and those of other packages."""

from __future__ import annotations

from importlib import metadata

__version__ = "0.1.0"
METHODS = {
    "int2": 1, "int3": 1, "int4": 1, "int5": 1, "int6": 1, "int8": 1, "fp8-e4m3": 1, "fp8-e5m2": 1,
    "fp32": 1, "fp16": 1, "bf16": 1, "exact": 1, "lm2": 1, "lm3": 1, "lm4": 1, "out3": 1,
    "ctr": 1, "had": 1, "norm": 1, "normall": 1, "rot": 1, "smooth": 1, "unrope": 1,
}  # fmt: skip
"""Codecs and maps of quantkv. One goes up when it stores other codes for the same input: the rows of its
formats are then measured again, and no others. Here, because rows are read where no codec can be loaded."""


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
