"""The version of quantkv, which stands in every row."""

__version__ = "0.1.0"
