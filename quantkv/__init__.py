"""quantkv: a research toolkit for quantized KV caches."""

__version__ = "0.1.0"
