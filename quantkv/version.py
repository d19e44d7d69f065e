"""The version of quantkv, which stands in every row, and those of other packages."""

from __future__ import annotations

from importlib import metadata

__version__ = "0.1.0"


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
