"""Store: append-only packed memory of one layer. Knows pages, tables, truncation and bytes; knows no
method."""

from quantkv.store.layout import PageLayout, Plane, page_layout
from quantkv.store.tensor import TensorStore
from quantkv.store.tiles import KEY_LANES, VALUE_LANES, Lanes
from quantkv.store.view import Since, View

__all__ = [
    "KEY_LANES",
    "VALUE_LANES",
    "Lanes",
    "PageLayout",
    "Plane",
    "Since",
    "TensorStore",
    "View",
    "page_layout",
]
