"""What must never pass silently: a format not exercised, one without effect, one that damages the model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.measurements.quality.protocols import Protocol
from quantkv.measurements.quality.section import Quality
from quantkv.peers.peer import Peer
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import DEFAULT_FLUSH

LOW_PACKED_READ = 0.5
LARGE_KL = 0.1
LOW_TOP1 = 0.8


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


def flagged(quality: Quality, spec: Any, protocol: Protocol, saturated: int | None = None) -> Quality:
    """The quality with everything a reader must not miss in its flags; `saturated` counts stored numbers."""
    flags = [*_measurement_flags(quality, spec, protocol), *_damage_flags(quality), *beyond_range(saturated)]
    return replace(quality, flags=[*quality.flags, *flags])


def beyond_range(saturated: int | None) -> list[str]:
    """What is said of stored numbers at the end of their dtype's range, if there are any."""
    said = "scales, zeros or values are beyond the range of their dtype and clip; @bf16 reaches further"
    return [f"{saturated} {said}"] if saturated else []


def _measurement_flags(quality: Quality, spec: Any, protocol: Protocol) -> list[str]:
    flags = []
    share = quality.packed_read_fraction
    if share is not None and share < LOW_PACKED_READ:
        flags.append(f"packed pairs are only {share:.1%} of those attended")
    score = quality.windows[0]["n"]
    if protocol.whole is None:
        uneven = [flush for flush in _flushes(spec) if score % flush]
        flags += [f"{score} scored tokens are no multiple of the flush of {flush}" for flush in uneven]
    lossy = isinstance(spec, CacheSpec) and not spec.is_raw
    if lossy and quality.floor_path_kl is not None and quality.kl_mean < quality.floor_path_kl:
        flags.append("KL below the floor of the arithmetic")
    return flags


def _flushes(spec: Any) -> list[int]:
    if isinstance(spec, CacheSpec):
        return sorted({spec.key.flush, spec.value.flush})
    return [DEFAULT_FLUSH] if callable(spec) else []


def _damage_flags(quality: Quality) -> list[str]:
    if not all(map(math.isfinite, (quality.nll, quality.kl_mean))):
        return ["NLL or KL is not finite with this format"]
    flags = [f"KL above {LARGE_KL} nats per token"] if quality.kl_mean > LARGE_KL else []
    return flags + ([f"top-1 agreement below {LOW_TOP1:.0%}"] if quality.top1_agreement < LOW_TOP1 else [])
