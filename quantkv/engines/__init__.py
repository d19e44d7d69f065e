"""Engines: what lays pages out, fills them, decodes them and attends to them, behind one protocol, and the
handles that carry pages through a model.

May be imported by cache and all that is above it.
"""

from quantkv.engines.choosing import Engine, attend, engine_for
from quantkv.engines.handles import KVHandle
from quantkv.engines.inputs import AttentionOptions, PlainReadable

__all__ = ["AttentionOptions", "Engine", "KVHandle", "PlainReadable", "attend", "engine_for"]
