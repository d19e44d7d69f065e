"""A cache format in full: what is stored how, which tokens stay exact, and the one short string that says it.

May be imported by the cache and all that is above it.
"""

from quantkv.spec.specs import CacheSpec, format_spec, parse_spec, presets
from quantkv.spec.tensors import TensorSpec

__all__ = ["CacheSpec", "TensorSpec", "format_spec", "parse_spec", "presets"]
