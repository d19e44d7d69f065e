"""Running models on caches, and looking at caches from outside."""

from __future__ import annotations

import gc
import types
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv import cache_argument
from quantkv.cache.hooks import register

IMPLEMENTATIONS = ("sdpa", "eager", "quantkv")


def token_ids(rows: int, length: int, vocab: int = 256, seed: int = 1) -> Tensor:
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def with_attention(model: Any, implementation: str) -> Any:
    """The model, switched to `implementation`."""
    register()
    model.set_attn_implementation(implementation)
    return model


def logits_in_calls(
    model: Any, ids: Tensor, cache: Any, sizes: list[int], mask: Tensor | None = None
) -> Tensor:
    """Logits of all positions when `ids` come in calls of `sizes`; a 2-D mask also sets the position ids."""
    assert sum(sizes) == ids.shape[1]
    out, start = [], cache.get_seq_length()
    first, argument = start, cache_argument(model)
    for size in sizes:
        options: dict[str, Any] = {argument: cache}
        if mask is not None:
            options["attention_mask"] = mask[:, : start + size]
            options["position_ids"] = positions(mask)[:, start : start + size]
        out.append(model(ids[:, start - first : start - first + size], **options).logits)
        start += size
    return torch.cat(out, 1)


def positions(mask: Tensor) -> Tensor:
    """Position ids as `generate` makes them: counted over real tokens, padding sees 1."""
    ids = mask.long().cumsum(-1) - 1
    return ids.masked_fill(mask == 0, 1)


def left_padded(pads: list[int], length: int) -> Tensor:
    """A 2-D mask of `length` columns whose rows begin with `pads` zeros."""
    return (torch.arange(length) >= torch.tensor(pads)[:, None]).long()


def plain_cache(model: Any) -> DynamicCache:
    return DynamicCache(config=model.config)


def live_bytes(root: Any) -> int:
    """Bytes of all tensor storages that can be reached from an object, each counted once."""
    seen, waiting, sizes = {id(root)}, [root], {}
    skipped = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, Tensor):
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        for other in gc.get_referents(thing):
            if id(other) not in seen and not isinstance(other, skipped):
                seen.add(id(other))
                waiting.append(other)
    return sum(sizes.values())
