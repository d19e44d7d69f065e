"""Bytes and multiply-adds of one decode step or a prefill of a whole model, counted from shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import DynamicCache

from quantkv.cache.quantized import QuantizedCache
from quantkv.instruments import huggingface as hf
from quantkv.peers.peer import GROUP

STOCK_BITS = 4


@dataclass(frozen=True)
class ModelWork:
    """Weights that a step reads (bytes) and multiplies with, the output layer's apart; for each layer
    multiply-adds per cached token, key and value elements per token, and its sliding window."""

    weight_bytes: int
    body: int
    head: int
    layers: tuple[tuple[int, int, int | None], ...]

    @classmethod
    def of(cls, model: Any) -> ModelWork:
        into, out = model.get_input_embeddings().weight, model.get_output_embeddings()
        head = out.weight if out is not None else None
        tied = head is not None and head.data_ptr() == into.data_ptr()
        weights = {p.data_ptr(): p for p in model.parameters() if tied or p.data_ptr() != into.data_ptr()}
        matrices = sum(p.numel() for p in weights.values() if p.dim() > 1)
        last = head.numel() if head is not None else 0
        return cls(sum(p.nbytes for p in weights.values()), matrices - last, last, _layers(model))

    def attention(self, tokens: int) -> int:
        """Multiply-adds of one query token over `tokens` cached ones."""
        return sum(per_token * min(tokens, window or tokens) for per_token, _, window in self.layers)

    def elements(self, tokens: int) -> int:
        """Key and value elements of `tokens` cached ones."""
        return sum(count * min(tokens, window or tokens) for _, count, window in self.layers)

    def step(self, tokens: int) -> int:
        """Multiply-adds of one decode step."""
        return self.body + self.head + self.attention(tokens)

    def prefill(self, tokens: int) -> int:
        """Multiply-adds of a prefill whose last position alone is scored: attention is half a square."""
        return self.body * tokens + self.head + self.attention(tokens) * tokens // 2


def _layers(model: Any) -> tuple[tuple[int, int, int | None], ...]:
    text = model.config.get_text_config()
    query_heads = text.num_attention_heads
    return tuple(
        (query_heads * (layer.key.width + layer.value.width), layer.token_elements, layer.window)
        for layer in hf.cached_layers(model)
        if layer.key is not None and layer.value is not None
    )


def cache_bytes(cache: Any, work: ModelWork, tokens: int, itemsize: int) -> int:
    """Bytes of the cache that one decode step reads and writes.

    Ours: what it holds of pages and exact tokens. DynamicCache joins the history with the new token (read and
    write) before attention reads it. Stock quantized caches read their codes, write them decoded, join and
    read them.
    """
    elements = work.elements(tokens)
    if isinstance(cache, QuantizedCache):
        return cache.used_nbytes
    if isinstance(cache, DynamicCache):
        return 3 * elements * itemsize
    return 4 * elements * itemsize + elements * STOCK_BITS // 8 + 2 * elements // GROUP * itemsize
