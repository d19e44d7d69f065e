"""An arm of a measurement: a cache format, a plain function `x -> x_hat`, or the DynamicCache baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quantkv.errors import UnsupportedError
from quantkv.evaluation.huggingface import stock_attention
from quantkv.spec import DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS, CacheSpec

BASELINE = "dynamic"
Function = Callable[..., Any]
Format = CacheSpec | Function | str
Result = dict[str, Any]
OnArm = Callable[[str, Result], None]
Progress = Callable[[str, int, int], None]


def parse_format(given: Format) -> CacheSpec | Function | str:
    """A spec for text, the baseline's name as it is, functions as they are."""
    from quantkv.spec_text import parse_spec

    if given == BASELINE or (callable(given) and not isinstance(given, CacheSpec)):
        return given
    return parse_spec(given)


def format_name(given: Format) -> str:
    """What a format is called in tables: as typed, a spec's name, a function's name."""
    if isinstance(given, str):
        return given
    return given.name if isinstance(given, CacheSpec) else getattr(given, "__name__", type(given).__name__)


def spec_text(parsed: CacheSpec | Function | str) -> str:
    """The canonical text that a row carries."""
    return str(parsed) if isinstance(parsed, CacheSpec | str) else f"function:{format_name(parsed)}"


def effective(model: Any, parsed: CacheSpec | Function | str, cache: Any = None, **overrides: Any) -> Result:
    """The effective section of a row: read from the cache where there is one, not from what was asked."""
    total = model.config.get_text_config().num_hidden_layers
    section: Result = {
        "spec": spec_text(getattr(cache, "spec", parsed)),
        "attn": model.config._attn_implementation,
        "engine": getattr(cache, "engine", "sdpa"),
        "simulated": False,
        "layers_quantized": getattr(cache, "num_quantized_layers", 0),
        "layers_total": total,
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
    else:
        section |= {
            "simulated": True,
            "engine": "reference",
            "layers_quantized": total,
            "sinks": DEFAULT_SINKS,
        }
        section |= dict.fromkeys(("recent_key", "recent_value"), DEFAULT_RECENT)
        section |= dict.fromkeys(("flush_key", "flush_value"), DEFAULT_FLUSH)
    return section | {"notes": []} | overrides


def success(kind: str, section: Result, effective: Result, seconds: float, **extra: Any) -> Result:
    """What `on_arm` gets for an arm that was measured."""
    return {"status": "ok", "reason": None, kind: section, "effective": effective, "seconds": seconds} | extra


def failure(kind: str, error: Exception, seconds: float) -> Result:
    """What `on_arm` gets for an arm not measured; `skipped` where the model cannot run the format."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    reason = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return {"status": status, "reason": reason, kind: None, "effective": None, "seconds": seconds}
