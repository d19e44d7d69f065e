"""quantkv: a research toolkit for quantized KV caches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantkv.registration import announce

__version__ = "0.1.0"

_HOMES = {
    "CacheSpec": "spec",
    "TensorSpec": "spec",
    "parse_spec": "spec_text",
    "presets": "named",
    "QuantizedCache": "cache",
    "cache_argument": "cache",
    "use": "using",
    "register": "hooks",
    "simulate": "evaluation.simulate",
    "perplexity": "evaluation.perplexity",
    "evaluate": "evaluation.evaluate",
    "retrieval": "evaluation.behaviour",
    "long_generation": "evaluation.behaviour",
    "curves": "evaluation.curves",
    "inspect": "evaluation.inside.inspection",
    "check": "evaluation.gate.run",
    "compare": "comparison",
    "plan": "planner",
    "load_model": "models",
    "load_text": "data",
    "load_results": "sweep.results",
    "QuantKVError": "errors",
    "UnsupportedError": "errors",
}
__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from quantkv.cache import QuantizedCache, cache_argument
    from quantkv.comparison import compare
    from quantkv.data import load_text
    from quantkv.errors import QuantKVError, UnsupportedError
    from quantkv.evaluation.behaviour import long_generation, retrieval
    from quantkv.evaluation.curves import curves
    from quantkv.evaluation.evaluate import evaluate
    from quantkv.evaluation.gate.run import check
    from quantkv.evaluation.inside.inspection import inspect
    from quantkv.evaluation.perplexity import perplexity
    from quantkv.evaluation.simulate import simulate
    from quantkv.hooks import register
    from quantkv.models import load_model
    from quantkv.named import presets
    from quantkv.planner import plan
    from quantkv.spec import CacheSpec, TensorSpec
    from quantkv.spec_text import parse_spec
    from quantkv.sweep.results import load_results
    from quantkv.using import use


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that importing the package (and `quantkv --help`) stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quantkv' has no attribute {name!r}")
    return getattr(import_module(f"quantkv.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


announce()
