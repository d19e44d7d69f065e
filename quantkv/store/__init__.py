"""Append-only packed memory of one layer: pages, tables, truncation and bytes; knows no method.

May be imported by spec, engines and all that is above them.
"""

from quantkv.store.layout import PageLayout, page_layout
from quantkv.store.tensor import TensorStore
from quantkv.store.tiles import KEY_LANES, VALUE_LANES, Lanes
from quantkv.store.view import View

__all__ = ["KEY_LANES", "VALUE_LANES", "Lanes", "PageLayout", "TensorStore", "View", "page_layout"]
