"""The `transformers.Cache` subclass, its layers, and what transformers calls: attention and mask functions.

May be imported by models, measurements and all that is above them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {"QuantizedCache": "quantized", "cache_argument": "names"}
__all__ = [*_HOMES]

if TYPE_CHECKING:
    from quantkv.cache.names import cache_argument
    from quantkv.cache.quantized import QuantizedCache


def __getattr__(name: str) -> Any:
    """Names load on first use, so that what lies beside them needs no transformers."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quantkv.cache' has no attribute {name!r}")
    return getattr(import_module(f"quantkv.cache.{_HOMES[name]}"), name)
