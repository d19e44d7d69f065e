"""What runs an arm: its cache, the attention that reads it, and what a row says of both."""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache

from quantkv.arms.arm import BASELINE, Parsed, Result, spec_text
from quantkv.errors import UnsupportedError
from quantkv.instruments.huggingface import stock_attention
from quantkv.peers.peer import Peer
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS


def new_cache(model: Any, parsed: Parsed) -> Any:
    """The empty cache of an arm that can be timed and weighed in this process."""
    if parsed == BASELINE:
        return DynamicCache(config=model.config)
    if isinstance(parsed, CacheSpec):
        from quantkv.cache.quantized import QuantizedCache

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
        "spec": spec_text(getattr(cache, "spec", parsed)),
        "attn": model.config._attn_implementation,
        "engine": getattr(cache, "engine", "sdpa"),
        "simulated": False,
        "layers_quantized": getattr(cache, "num_quantized_layers", 0),
        "layers_total": total,
        "saturated": getattr(cache, "saturated", None),
        "sinks": None,
    }
    section |= dict.fromkeys(("recent_key", "recent_value", "flush_key", "flush_value"))
    if isinstance(parsed, CacheSpec):
        section |= {
            "sinks": parsed.sinks,
            "recent_key": parsed.key.recent,
            "recent_value": parsed.value.recent,
        }
        section |= {"flush_key": parsed.key.flush, "flush_value": parsed.value.flush}
    elif parsed == BASELINE:
        section["attn"] = stock_attention(model)
    elif isinstance(parsed, Peer):
        section |= _effective_peer(model, parsed, cache)
    else:
        section |= {
            "simulated": True,
            "engine": "reference",
            "layers_quantized": total,
            "sinks": DEFAULT_SINKS,
        }
        section |= dict.fromkeys(("recent_key", "recent_value"), DEFAULT_RECENT)
        section |= dict.fromkeys(("flush_key", "flush_value"), DEFAULT_FLUSH)
    return {"notes": []} | section | overrides


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
