"""Attention: engines that read pages directly, and the handles that carry them through a model."""

from quantkv.attention.handles import KVHandle
from quantkv.attention.engine import attend

__all__ = ["KVHandle", "attend"]
