"""Whether one pass of a model can stand for decoding through a packed cache, found out on a few tokens.

A decode-exact pass changes what attention is called with. That equals a packed cache only where a model reads
its cache through attention and nowhere else. So some tokens run on a cache that returns noise, while
attention computes with what the noise stands for: whatever else the model does with cached tensors shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.cache.hooks import SIMULATION, fused_attention
from quantkv.engines import AttentionOptions, PlainReadable, attend
from quantkv.errors import UnsupportedError
from quantkv.instruments.divergence import check_reference
from quantkv.instruments.huggingface import attention, evaluating, forward, stock_attention

TOKENS = 6
ARITHMETIC = 0.05
"""Largest relative difference of logits that the same computation in another order may make, in any dtype."""


@dataclass(frozen=True, slots=True)
class OnePass:
    """What a pass of a model does. `calls`: of each of its calls of attention, in order, the module's layer
    and the layer whose cached keys and values it reads. `continues`: whether it may follow a cache with
    several tokens at once. `tells`: whether its cache is told position ids, as its attention may be alone."""

    calls: tuple[tuple[int, int], ...]
    continues: bool
    tells: bool


_KNOWN: weakref.WeakKeyDictionary[Any, OnePass | str] = weakref.WeakKeyDictionary()


def one_pass(model: Any) -> OnePass:
    """Raises UnsupportedError, with the reason, where a pass of the model cannot stand for decoding, and
    QuantKVError where the model's logits are not finite."""
    known = _KNOWN.get(model)
    if known is None:
        with torch.no_grad(), evaluating(model):
            known = _KNOWN[model] = _examine(model)
    if isinstance(known, str):
        raise UnsupportedError(f"{type(model).__name__} cannot run in a decode-exact pass: {known}")
    return known


def _examine(model: Any) -> OnePass | str:
    expected, _ = _noisy_pass(model, noisy=False)
    check_reference(expected, "of the first that were tried")
    logits, looker = _noisy_pass(model, noisy=True)
    if not looker.cache.held:
        return "it leaves the cache that it is given empty"
    if not {donor for _, donor in looker.calls} >= set(looker.cache.held):
        return "it computes attention itself, or with other keys and values than it caches"
    if not _alike(logits, expected):
        return "it computes with cached keys or values outside attention"
    with fused_attention(model):
        if not _alike(forward(model, _ids(), keep=TOKENS).double(), expected):
            return "without a cache it gives other logits, without any format"
    if not any(hasattr(layer, "conv_states") for layer in looker.cache.layers):
        return OnePass(tuple(looker.calls), True, looker.cache.told)
    stepped = _plain_pass(model, [1] * TOKENS)
    if not _alike(_plain_pass(model, [TOKENS]), stepped):
        return "its linear layers give other logits in one call than token by token, without any format"
    continues = _alike(_plain_pass(model, [TOKENS // 2, TOKENS - TOKENS // 2]), stepped)
    return OnePass(tuple(looker.calls), continues, looker.cache.told)


def _alike(logits: Tensor, expected: Tensor) -> bool:
    logits, expected = (x.nan_to_num(neginf=0.0) for x in (logits, expected))  # tokens that cannot come
    return bool((logits - expected).norm() <= ARITHMETIC * expected.norm())


def _ids() -> Tensor:
    return torch.arange(TOKENS)[None]


def _plain_pass(model: Any, calls: Sequence[int]) -> Tensor:
    cache = DynamicCache(config=model.config)
    with attention(model, stock_attention(model)):
        parts = [forward(model, ids, cache, keep=ids.shape[1]) for ids in _ids().split(list(calls), 1)]
    return torch.cat(parts, 1).double()


def _noisy_pass(model: Any, *, noisy: bool) -> tuple[Tensor, _Looker]:
    looker = _Looker(_NoisyCache(model.config, noisy))
    token = SIMULATION.set(looker)
    try:
        with fused_attention(model):
            return forward(model, _ids(), looker.cache, keep=TOKENS).double(), looker
    finally:
        SIMULATION.reset(token)


class _NoisyCache(DynamicCache):
    """Returns noise for what it is given. `held`: by layer, keys and values as given and as returned."""

    def __init__(self, config: Any, noisy: bool) -> None:
        super().__init__(config=config)
        self.noisy = noisy
        self.held: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.told = False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.told |= (kwargs.get("kwargs") or {}).get("position_ids") is not None
        given = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        noise = [_noise(x, 2 * layer_idx + i) if self.noisy else x for i, x in enumerate(given)]
        self.held[layer_idx] = list(zip(given, noise, strict=True))
        return noise[0], noise[1]


def _noise(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=generator).to(x.device, x.dtype)


class _Looker:
    """Computes attention with what the cache was given, and notes from which layer that came."""

    def __init__(self, cache: _NoisyCache) -> None:
        self.cache = cache
        self.calls: list[tuple[int, int]] = []

    def begin_call(self, padding: Any, seen: int) -> None:
        """One unpadded call: nothing to note."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: AttentionOptions,
        told: Tensor | None,
    ) -> Tensor | None:
        for donor, held in reversed(self.cache.held.items()):
            exact = [_exact(x, *pair) for x, pair in zip((key, value), held, strict=True)]
            readable = [PlainReadable(x) for x in exact if x is not None]
            if len(readable) == 2:
                self.calls.append((layer, donor))
                return attend(query, readable[0], readable[1], options)
        return None


def _exact(seen: Tensor, given: Tensor, returned: Tensor) -> Tensor | None:
    """`given` for `returned`, where each head of `seen` is a head of that; None where it is not."""
    if seen.shape[0] != returned.shape[0] or seen.shape[2:] != returned.shape[2:]:
        return None
    same = (seen[:, :, None] == returned[:, None]).flatten(3).all(-1).all(0)
    return given[:, same.int().argmax(1)].to(seen.dtype) if bool(same.any(1).all()) else None
