"""What runs an arm: its cache, the exact prompt that all begin from, the attention that reads it, and what a
row says of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.arms.arm import BASELINE, Format, Parsed, Result, failure, spec_text, success
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.errors import UnsupportedError
from quantkv.instruments.huggingface import attention, forward, keeping_cache, stock_attention
from quantkv.peers.peer import Peer
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS

REFERENCE = "exact"


@dataclass(slots=True)
class Running:
    """An arm that is measured: the seconds it took so far, and what stopped it."""

    label: str
    given: Format
    seconds: float = 0.0
    error: Exception | None = None

    def attempt(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """What a step of the arm gives; an arm that fails is out, the others go on."""
        if self.error is not None:
            return None
        begin = time.perf_counter()
        try:
            return step(self, *arguments)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            self.error = error
        finally:
            self.seconds += time.perf_counter() - begin
        return None

    def result(self, kind: str, section: Result | None, effective: Result | None, **extra: Any) -> Result:
        """What `on_arm` gets; a failure where there are no numbers."""
        if self.error is not None or section is None:
            return failure(kind, self.error or RuntimeError("not measured"), self.seconds)
        return success(kind, section, effective, self.seconds, **extra)


def reference(model: Any) -> str:
    """The exact format; where every layer of a model slides it packs those, or it would pack none."""
    layers = QuantizedCache(model.config, f"{REFERENCE}+sliding").layers
    return REFERENCE if any(type(layer) is QuantizedLayer for layer in layers) else f"{REFERENCE}+sliding"


def prefilled(model: Any, ids: Tensor) -> tuple[DynamicCache, Tensor]:
    """A plain cache of the rows `[B, T]` after one call on stock attention, and the last logits, `[B, V]`."""
    cache = keeping_cache(model.config)
    with torch.inference_mode(), attention(model, stock_attention(model)):
        logits = forward(model, ids, cache)
    return cache, logits[:, -1]


def new_cache(model: Any, parsed: Parsed) -> Any:
    """The empty cache of an arm that can be timed and weighed in this process."""
    if parsed == BASELINE:
        return DynamicCache(config=model.config)
    if isinstance(parsed, CacheSpec):
        return QuantizedCache(model.config, parsed)
    if not isinstance(parsed, Peer):
        raise UnsupportedError("a plain function stores nothing: it has a quality, no speed and no memory")
    from quantkv.peers.versions import check_peer
    from quantkv.peers.worker import new_cache as new_peer

    check_local(parsed)
    check_peer(parsed, model.config)
    return new_peer(parsed.recipe, model.config)


def check_local(peer: Peer) -> None:
    """Raise where a peer cannot take part in a race or be weighed beside the others."""
    if peer.python is not None:
        raise UnsupportedError(
            f"{peer.label} runs in another interpreter: it has a quality, no speed and no memory"
        )
    if peer.is_press:
        raise UnsupportedError(f"{peer.label} prunes in prefill: it has a quality, no speed and no memory")


def attention_of(model: Any, parsed: Parsed) -> str:
    """The attention implementation that reads an arm's cache."""
    stock = parsed == BASELINE or (isinstance(parsed, Peer) and parsed.on_top is None)
    return stock_attention(model) if stock else "quantkv"


def effective(model: Any, parsed: Parsed, cache: Any = None, **overrides: Any) -> Result:
    """The effective section of a row: read from the cache where there is one, not from what was asked."""
    total = model.config.get_text_config().num_hidden_layers
    section: Result = {
        "notes": [],
        "spec": spec_text(getattr(cache, "spec", parsed)),
        "attn": model.config._attn_implementation,
        "engine": getattr(cache, "engine", "sdpa"),
        "simulated": False,
        "layers_quantized": getattr(cache, "num_quantized_layers", 0),
        "layers_total": total,
        "saturated": getattr(cache, "saturated", None),
    }
    if why := getattr(cache, "engine_why", ""):
        section["engine_why"] = why
    if isinstance(parsed, CacheSpec):
        section |= _policy(parsed.sinks, *((own.recent, own.flush) for own in (parsed.key, parsed.value)))
    elif isinstance(parsed, Peer):
        section |= _policy() | _effective_peer(model, parsed, cache)
    elif parsed == BASELINE:
        section |= _policy() | {"attn": stock_attention(model)}
    else:
        section |= _policy(DEFAULT_SINKS, *[(DEFAULT_RECENT, DEFAULT_FLUSH)] * 2)
        section |= {"simulated": True, "engine": "reference", "layers_quantized": total}
    return section | overrides


def _policy(sinks: int | None = None, key: Any = (None, None), value: Any = (None, None)) -> Result:
    """Which tokens stay exact; (recent, flush) of keys and of values."""
    found = {"sinks": sinks, "recent_key": key[0], "recent_value": value[0]}
    return found | {"flush_key": key[1], "flush_value": value[1]}


def _effective_peer(model: Any, peer: Peer, cache: Any) -> Result:
    """A peer's own policy, or that of our format on top of it."""
    if peer.on_top is not None:
        section = effective(model, peer.on_top, cache)
        section["notes"] = peer.made_by.notes
    else:
        layers = 0 if peer.made_by.policy is None else model.config.get_text_config().num_hidden_layers
        section = {"engine": peer.engine, "layers_quantized": layers, "notes": peer.made_by.notes}
        section |= peer.made_by.policy or {}
    return section | {"spec": str(peer), "attn": attention_of(model, peer)}
