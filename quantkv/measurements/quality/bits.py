"""What a format costs: bits per value on full pages, and in a real cache that holds C tokens."""

from __future__ import annotations

from typing import Any

from quantkv.arms.arm import Result
from quantkv.cache.footprint import cache_footprint
from quantkv.cache.quantized import QuantizedCache
from quantkv.instruments.huggingface import cached_layers, fill
from quantkv.measurements.quality.section import Bits
from quantkv.measurements.running import effective
from quantkv.spec.specs import CacheSpec


def cache_figures(model: Any, spec: Any, context: int, lengths: range) -> tuple[Bits, Result]:
    """Bits and effective settings, read from a cache filled with `context` tokens; functions hold no bits.

    `lengths` are the tokens cached while the scored queries run, for the mean over them.
    """
    if not isinstance(spec, CacheSpec):
        return Bits(), effective(model, spec, attn="quantkv")
    cache = fill(QuantizedCache(model.config, spec), model, context, batch=1)
    exact_at_16 = cache.exact_nbytes * 2 / model.dtype.itemsize
    bits = Bits(
        bits_packed=bits_packed(model, spec),
        bits_cache=cache.effective_bits,
        bits_cache_mean=mean_bits(cache, lengths),
        bits_cache_16=8 * (cache.nbytes - cache.exact_nbytes + exact_at_16) / cache.elements,
        cache_bytes=cache.nbytes,
    )
    return bits, effective(model, spec, cache, attn="quantkv", engine="reference")


def mean_bits(cache: QuantizedCache, lengths: range) -> float:
    """Bits per value averaged over the scored lengths: bytes grow in steps, so one length may flatter."""
    stores = [store for layer in cache.quantized_layers for store in layer.stores]
    values_per_token = sum(store.rows * store.heads * store.head_dim for store in stores)
    each = [8 * sum(store.predicted_nbytes(n) for store in stores) / (values_per_token * n) for n in lengths]
    return sum(each) / len(each)


def bits_packed(model: Any, spec: CacheSpec) -> float:
    """Bits per value of full pages, over all packed layers so that per-layer overrides count."""
    return cache_footprint(cached_layers(model), QuantizedCache(model.config, spec)).bits_packed
