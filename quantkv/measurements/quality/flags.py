"""What a reader of a quality row must not miss: how it was measured, and what a format damages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from quantkv.measurements.checks import beyond_range, few_packed
from quantkv.measurements.quality.protocols import Protocol
from quantkv.measurements.quality.section import Quality
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import DEFAULT_FLUSH

LARGE_KL = 0.1
LOW_TOP1 = 0.8


def flagged(quality: Quality, spec: Any, protocol: Protocol, saturated: int | None = None) -> Quality:
    """The quality with everything a reader must not miss in its flags; `saturated` counts stored numbers."""
    flags = [*_measurement_flags(quality, spec, protocol), *_damage_flags(quality), *beyond_range(saturated)]
    return replace(quality, flags=[*quality.flags, *flags])


def _measurement_flags(quality: Quality, spec: Any, protocol: Protocol) -> list[str]:
    share = quality.packed_read_fraction
    flags = [] if share is None else few_packed(share)
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
