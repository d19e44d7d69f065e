"""Loading a model by one name, whatever it comes from, and saying which model a number was measured on.

May be imported by the decode-exact pass, arms, the planner, measurements and all that is above them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "RANDOM_MODELS": "synthetic",
    "Source": "identity",
    "byte_tokenizer": "synthetic",
    "load_model": "loading",
    "model_identity": "identity",
    "model_names": "loading",
    "random_model": "synthetic",
}
__all__ = [*_HOMES]

if TYPE_CHECKING:
    from quantkv.models.identity import Source, model_identity
    from quantkv.models.loading import load_model, model_names
    from quantkv.models.synthetic import RANDOM_MODELS, byte_tokenizer, random_model


def __getattr__(name: str) -> Any:
    """Names load on first use, so that `quantkv.models.names` needs no transformers."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quantkv.models' has no attribute {name!r}")
    return getattr(import_module(f"quantkv.models.{_HOMES[name]}"), name)
