"""Store: append-only packed memory of one layer. Knows pages, tables, truncation and bytes; knows no
method."""

from quantkv.store.layout import PageLayout, page_layout
from quantkv.store.tensor import TensorStore
from quantkv.store.view import Since, View

__all__ = ["PageLayout", "Since", "TensorStore", "View", "page_layout"]
