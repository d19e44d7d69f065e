"""quantkv: a research toolkit for quantized KV caches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantkv.registration import announce
from quantkv.version import __version__

_HOMES = {
    "CacheSpec": "spec",
    "TensorSpec": "spec",
    "parse_spec": "spec",
    "presets": "spec",
    "QuantizedCache": "cache",
    "cache_argument": "cache",
    "use": "cache.using",
    "register": "cache.hooks",
    "simulate": "decode_exact.simulate",
    "perplexity": "measurements.quality.run",
    "evaluate": "sweep.evaluate",
    "retrieval": "sweep.evaluate",
    "long_generation": "sweep.evaluate",
    "curves": "measurements.quality.curves",
    "inspect": "measurements.inside.inspection",
    "check": "checking.run",
    "compare": "comparison",
    "plan": "planner",
    "load_model": "models",
    "load_text": "data",
    "load_results": "rows.frames",
    "QuantKVError": "errors",
    "UnsupportedError": "errors",
}
__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from quantkv.cache.hooks import register
    from quantkv.cache.names import cache_argument
    from quantkv.cache.quantized import QuantizedCache
    from quantkv.cache.using import use
    from quantkv.checking.run import check
    from quantkv.comparison import compare
    from quantkv.data import load_text
    from quantkv.decode_exact.simulate import simulate
    from quantkv.errors import QuantKVError, UnsupportedError
    from quantkv.measurements.inside.inspection import inspect
    from quantkv.measurements.quality.curves import curves
    from quantkv.measurements.quality.run import perplexity
    from quantkv.models import load_model
    from quantkv.planner import plan
    from quantkv.rows.frames import load_results
    from quantkv.spec.specs import CacheSpec, parse_spec, presets
    from quantkv.spec.tensors import TensorSpec
    from quantkv.sweep.evaluate import evaluate, long_generation, retrieval


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that importing the package (and `quantkv --help`) stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quantkv' has no attribute {name!r}")
    return getattr(import_module(f"quantkv.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


announce()
