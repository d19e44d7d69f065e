"""Names between transformers and this package; nothing heavy, as importing quantkv reads them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATION = "quantkv"
"""The attention and mask functions, as transformers knows them."""
CACHE_ARGUMENTS = ("cache", "past_key_values")


def cache_argument(model: PreTrainedModel) -> str:
    """How `model.forward` calls a cache: `cache` from transformers 5.24 on, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
