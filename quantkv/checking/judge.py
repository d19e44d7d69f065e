"""What the numbers of a format say: damage, too little packed, a slow engine, exact layers."""

from __future__ import annotations

import math
from typing import Any

from quantkv.cache.quantized import QuantizedCache
from quantkv.engines import native
from quantkv.instruments.verdict import Finding, Thresholds, Verdict
from quantkv.measurements.checks import LOW_PACKED_READ
from quantkv.measurements.quality.section import LOW_TOP1
from quantkv.spec.specs import CacheSpec

FULL_BITS = 16.0
LOW_SAVING = 0.25
"""Share of the saving of full pages that a cache must reach at the context of the check."""
MOST_LAYERS = 0.5


def judge(quality: dict[str, Any], model: Any, spec: CacheSpec, thresholds: Thresholds) -> list[Finding]:
    """All findings on a measured format, the KL's first."""
    cache = QuantizedCache(model.config, spec)
    findings = [_kl(quality, thresholds), _top1(quality), _packed(quality), _saving(quality)]
    return [found for found in (*findings, _engine(cache), _layers(cache)) if found is not None]


def _kl(quality: dict[str, Any], thresholds: Thresholds) -> Finding:
    kl, low, high = (quality[name] for name in ("kl_mean", "kl_low", "kl_high"))
    verdict = thresholds.verdict(kl)
    if not math.isfinite(kl) or not math.isfinite(quality["nll"]):
        return Finding(Verdict.UNFIT, "with this format the model's output is not finite")
    interval = "" if low is None else f" (95 % interval {max(0.0, low):.2g} to {high:.2g})"
    words = f"mean KL {kl:.2g} nats per token{interval}"
    if low is not None and thresholds.verdict(low) != thresholds.verdict(high):
        words += "; the interval crosses a threshold, more windows would settle it"
    return Finding(verdict, words)


def _top1(quality: dict[str, Any]) -> Finding:
    agreement = quality["top1_agreement"]
    low = agreement < LOW_TOP1
    words = f"top-1 agreement {agreement:.1%}" + (f", below {LOW_TOP1:.0%}" if low else "")
    return Finding(Verdict.CAUTION if low else Verdict.FIT, words)


def _packed(quality: dict[str, Any]) -> Finding | None:
    share = quality["packed_read_fraction"]
    if share >= LOW_PACKED_READ:
        return None
    return Finding(
        Verdict.CAUTION,
        f"only {share:.0%} of what was attended to was packed: a longer context will show more damage",
    )


def _saving(quality: dict[str, Any]) -> Finding | None:
    """Bits held at this context beside those of full pages, exact tokens counted at 16 bits."""
    full, here = quality["bits_packed"], quality["bits_cache_16"]
    if full is None or full >= FULL_BITS or (FULL_BITS - here) >= LOW_SAVING * (FULL_BITS - full):
        return None
    return Finding(
        Verdict.CAUTION,
        f"{here:.1f} bits per value at this context, {full:.2f} on full pages: "
        "most of the saving is not reached",
    )


def _engine(cache: QuantizedCache) -> Finding | None:
    if cache.engine != "reference":
        return None
    verdict = Verdict.FIT if native.isa() is None else Verdict.CAUTION
    return Finding(verdict, f"attention runs on the slower PyTorch engine: {cache.engine_why}")


def _layers(cache: QuantizedCache) -> Finding | None:
    """Layers that stay exact: left alone by the cache, or by an override of the format."""
    if cache.spec.is_raw and not cache.spec.layers:
        return None
    table = cache.describe()
    exact = table[~table["quantized"].astype(bool)]
    if exact.empty:
        return None
    why = "; ".join(sorted(set(exact["why"]))) if cache.num_quantized_layers < len(table) else "as asked"
    verdict = Verdict.CAUTION if len(exact) > MOST_LAYERS * len(table) else Verdict.FIT
    return Finding(verdict, f"{len(exact)} of {len(table)} layers stay exact: {why}")
