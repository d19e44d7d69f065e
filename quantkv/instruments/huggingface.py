"""The few things an evaluation asks of a transformers model and its caches, in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from quantkv.cache.layer_shapes import LayerShape, held_tensors, layer_shapes
from quantkv.cache.names import cache_argument
from quantkv.errors import QuantKVError


def forward(model: Any, ids: Tensor, cache: Any = None, *, keep: int = 1) -> Tensor:
    """Logits [B, keep, V] of the last `keep` positions; `cache` grows by the ids."""
    with_cache = (
        {cache_argument(model): cache, "use_cache": True} if cache is not None else {"use_cache": False}
    )
    return model(input_ids=ids.to(model.device), logits_to_keep=keep, **with_cache).logits


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout for a while: every module in eval mode, and at the end as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def attention(model: Any, implementation: str) -> Iterator[None]:
    """Measure with another attention implementation for a while, in eval mode."""
    before = model.config._attn_implementation
    if implementation != before:
        model.set_attn_implementation(implementation)
    try:
        with evaluating(model):
            yield
    finally:
        if implementation != before:
            model.set_attn_implementation(before)


def stock_attention(model: Any) -> str:
    """What the baseline runs on: sdpa, or eager where the model knows no sdpa."""
    return "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"


def check_length(model: Any, tokens: int) -> None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and tokens > limit:
        raise QuantKVError(
            f"{tokens} tokens (context and scored or decoded tokens) exceed the model's limit of {limit}"
        )


def keeping_cache(config: Any) -> DynamicCache:
    """A plain cache for a model that drops nothing: layers with a sliding window keep every token."""
    cache = DynamicCache(config=config)
    slides = [type(layer) is DynamicSlidingWindowLayer for layer in cache.layers]
    cache.layers = [DynamicLayer() if s else layer for s, layer in zip(slides, cache.layers, strict=True)]
    return cache


def fork(cache: DynamicCache, device: str | None = None) -> DynamicCache:
    """A cache with the same keys and values, on `device` or where its layers live; growing it changes only
    it. States of linear layers, which are written in place, are copied."""
    twin = copy.copy(cache)
    twin.layers = [_fork_layer(layer, device) for layer in cache.layers]
    return twin


def _fork_layer(layer: Any, device: str | None) -> Any:
    def moved(x: Any, copied: bool) -> Any:
        return x.to(device or layer.device, copy=copied) if isinstance(x, Tensor) else x

    twin = copy.copy(layer)
    for name, held in vars(layer).items():
        if isinstance(held, dict):
            setattr(twin, name, {i: moved(x, copied=True) for i, x in held.items()})
        elif name in ("keys", "values"):
            setattr(twin, name, moved(held, copied=False))
    return twin


def dynamic_bytes(cache: DynamicCache) -> int:
    """Bytes of the live storages of a DynamicCache, shared ones counted once."""
    storages = [x.untyped_storage() for layer in cache.layers for x in held_tensors(layer)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def cache_shapes(model: Any) -> list[tuple[int, int, int]]:
    """KV heads, key and value width of each layer that caches keys, as the model itself hands them over."""
    layers = ((layer.key, layer.value) for layer in cached_layers(model))
    return [(k.heads, k.width, v.width) for k, v in layers if k is not None and v is not None]


def cached_layers(model: Any) -> list[LayerShape]:
    """What each layer of a model caches, sliding windows and states of linear layers too."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode(), attention(model, stock_attention(model)):
        forward(model, torch.zeros(1, 1, dtype=torch.long), cache)
    return layer_shapes(cache)


def fill(cache: Any, model: Any, context: int, batch: int, *, seed: int = 0) -> Any:
    """Append `context` random tokens to every attention layer; equal seeds give equal keys and values."""
    for index, layer in enumerate(cached_layers(model)):
        if layer.key is None or layer.value is None:
            continue  # linear attention, or a layer that reads another's keys
        noise = torch.Generator().manual_seed(seed * 1000 + index)
        keys, values = (
            torch.randn(batch, x.heads, context, x.width, generator=noise).to(model.device, model.dtype)
            for x in (layer.key, layer.value)
        )
        cache.update(keys, values, index)
    return cache
