"""What must never pass silently in any kind: a format that no packed cache holds, one not exercised, one
without effect, one that clips."""

from __future__ import annotations

from typing import Any

from quantkv.arms.arm import Format, parse_format
from quantkv.errors import QuantKVError
from quantkv.peers.peer import Peer
from quantkv.spec.specs import CacheSpec

LOW_PACKED_READ = 0.5


def spec_of(label: str, given: Format) -> CacheSpec:
    """The spec of an arm; QuantKVError for what no packed cache of ours holds."""
    parsed = parse_format(given)
    if not isinstance(parsed, CacheSpec):
        raise QuantKVError(
            f"{label} is no packed format; retrieval and generation run a real cache: name a preset or a spec"
        )
    return parsed


def check_exercised(label: str, packed_read: float | None, context: int) -> None:
    """Raise where no scored token read a packed value, or (NaN) no attention ran through the format at all:
    such a number says nothing about it."""
    if packed_read is not None and not packed_read > 0:
        raise QuantKVError(
            f"{label}: no scored token reads a packed value at context {context}; use a longer context or a "
            "smaller window (recent, flush, sinks)"
        )


def check_effect(label: str, spec: Any, identical: bool) -> None:
    """Raise where a lossy format gave the reference's logits to the last bit."""
    lossy = isinstance(spec, Peer) or (isinstance(spec, CacheSpec) and not spec.is_raw)
    if identical and lossy:
        raise QuantKVError(f"{label} changed no logit: the cache was not exercised")


def few_packed(packed_read: float) -> list[str]:
    """A flag where most of what was read is exact."""
    few = packed_read < LOW_PACKED_READ
    return [f"packed pairs are only {packed_read:.1%} of those attended"] if few else []


def beyond_range(saturated: int | None) -> list[str]:
    """What is said of stored numbers at the end of their dtype's range, if there are any."""
    said = "scales, zeros or values are beyond the range of their dtype and clip; @bf16 reaches further"
    return [f"{saturated} {said}"] if saturated else []
