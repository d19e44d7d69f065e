"""Attention: engines that read pages directly, and the handles that carry them through a model."""

from quantkv.attention.engine import attend
from quantkv.attention.handles import KVHandle

__all__ = ["KVHandle", "attend"]
