"""What a store asks of the engine that serves it: bytes into pages and numbers out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from quantkv.codecs import Stored
from quantkv.store.layout import PageLayout

if TYPE_CHECKING:
    from quantkv.store.pages import PageStore


class PageEngine(Protocol):
    """Stateless; one serves every store. What it keeps for the pages of one store hangs there (`opened`)."""

    @property
    def name(self) -> str:
        """As rows say it."""

    def layout(self, stored: Stored) -> PageLayout:
        """Where the fields of a page lie."""

    def open(self, stored: Stored, layout: PageLayout) -> Any:
        """What the engine keeps for the pages of one store."""

    def encode(self, pages: PageStore, rows: Sequence[int], start: int, x: Tensor) -> None:
        """Put `[len(rows), H, T, D]` into pages that are there, from token `start` of each row on."""

    def decode(
        self, pages: PageStore, rows: Sequence[int], start: int, stop: int, dtype: torch.dtype
    ) -> Tensor:
        """Tokens `[start, stop)` of `rows`, `[len(rows), H, stop - start, D]` in `dtype`."""

    def allocated(self, slab: Tensor) -> None:
        """New memory for pages is there, nothing in it yet."""
