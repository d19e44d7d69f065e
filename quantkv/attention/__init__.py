"""Attention from pages: the engines that read them, and the handles that carry them through a model.

May be imported by cache and all that is above it.
"""

from quantkv.attention.engine import attend
from quantkv.attention.handles import KVHandle
from quantkv.attention.inputs import AttentionOptions, PlainReadable

__all__ = ["AttentionOptions", "KVHandle", "PlainReadable", "attend"]
