"""Synthetic schema-1 rows shaped like a sweep of SmolLM2-135M, for tests of what comes after a sweep.

Sizes follow the model (30 layers, 3 KV heads of width 64) so that figures look like real ones; the numbers
that a test checks are given to ``quality_row``, ``speed_row`` and ``memory_row`` by that test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

MODEL = "smollm2-135m-instruct-q4_1"
BYTES_16_PER_TOKEN = 2 * 30 * 3 * 64 * 2
EXACT_TOKENS = 4 + 64 + 16
BITS = {
    "fp16": 16.0,
    "fp8-e4m3": 8.25,
    "int8-channel": 9.0,
    "int8-head": 8.5,
    "int4-head": 4.5,
    "kivi-4": 5.0,
    "kivi-2": 3.0,
}
KL = {
    "fp16": 3e-8,
    "fp8-e4m3": 7e-4,
    "int8-channel": 1e-5,
    "int8-head": 2e-5,
    "int4-head": 5.8e-3,
    "kivi-4": 1.6e-3,
    "kivi-2": 0.11,
}
SLOWDOWN = {
    "fp16": 1.25,
    "fp8-e4m3": 2.3,
    "int8-channel": 1.7,
    "int8-head": 1.62,
    "int4-head": 1.9,
    "kivi-4": 2.0,
    "kivi-2": 2.05,
}
BASELINE_MS = {512: 30.0, 1024: 35.0, 2048: 44.0, 4096: 62.0}

PROTOCOLS: dict[str, dict[str, Any]] = {
    "quality": {
        "text": "python-docs",
        "text_sha256": "9f2c41d07be6" + "0" * 52,
        "prefill": "exact",
        "score": 128,
        "windows": 16,
        "bos": "per_window",
    },
    "speed": {"baseline": "dynamic", "rounds": 10, "block": 8, "fill": "prefill", "threads": 2},
    "memory": {"isolate": "process", "phases": ["prefill", "decode"]},
}


def row(
    kind: str,
    format: str,
    context: int,
    values: dict[str, Any] | None,
    *,
    spec: str | None = None,
    model: str = MODEL,
    dtype: str = "float32",
    batch: int = 1,
    seed: int = 0,
    engine: str | None = None,
    status: str = "ok",
    reason: str | None = None,
    protocol: dict[str, Any] | None = None,
    simulated: bool = False,
) -> Row:
    """One cell; ``values`` is the section of its kind, None for a cell that failed."""
    spec = spec or format
    return {
        "schema": 1,
        "kind": kind,
        "key": f"{kind}-{model}-{spec}-{context}-{batch}-{seed}",
        "status": status,
        "reason": reason,
        "requested": {
            "model": model,
            "revision": None,
            "dtype": dtype,
            "attn": "quantkv",
            "format": format,
            "spec": spec,
            "context": context,
            "batch": batch,
            "seed": seed,
        },
        "effective": {
            "spec": spec,
            "attn": "sdpa" if format == "dynamic" else "quantkv",
            "engine": engine or ("sdpa" if format == "dynamic" else "reference"),
            "simulated": simulated,
            "layers_quantized": 0 if format == "dynamic" else 30,
            "layers_total": 30,
            "sinks": 4,
            "recent_key": 64,
            "recent_value": 64,
            "flush_key": 32,
            "flush_value": 32,
            "notes": [],
        },
        "protocol": {**PROTOCOLS[kind], **(protocol or {})},
        "quality": values if kind == "quality" else None,
        "speed": values if kind == "speed" else None,
        "memory": values if kind == "memory" else None,
        "provenance": {
            "quantkv": "0.1.0",
            "metrics": {"quality": 1, "speed": 1, "memory": 1},
            "python": "3.11.9",
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "commit": None,
            "machine": {"cpu": "Intel(R) Xeon(R) Processor", "cores": 2, "ram_gb": 15.6, "gpu": None},
            "device": "cpu",
            "threads": 2,
            "load_1m": 0.4,
            "started": "2031-05-04T10:00:00+00:00",
            "seconds": 12.5,
            "weights": "4-bit gguf (Q4_1)",
            "revision": "0123456789abcdef0123456789abcdef01234567",
        },
    }


def failed_row(
    kind: str, format: str, context: int, reason: str, *, status: str = "failed", **options: Any
) -> Row:
    return row(kind, format, context, None, status=status, reason=reason, **options)


VALUES: dict[str, dict[str, Any]] = {
    "quality": {
        "nll": 2.8,
        "nll_ref": 2.79,
        "perplexity": 16.4446,
        "perplexity_ref": 16.281,
        "delta_nll": 0.01,
        "delta_nll_low": 0.006,
        "delta_nll_high": 0.014,
        "ppl_ratio": 1.0100502,
        "kl_mean": 0.0058,
        "kl_low": 0.005,
        "kl_high": 0.0066,
        "kl_median": 0.003,
        "kl_max": 0.4,
        "kl_p99": None,
        "top1_agreement": 0.971,
        "packed_read_fraction": 0.9,
        "floor_path_kl": 1e-10,
        "tokens_scored": 2048,
        "bits_packed": 4.5,
        "bits_cache": 6.1,
        "bits_cache_16": 5.3,
        "cache_bytes": 4_000_000,
        "windows": [
            {"start": 0, "n": 128, "sum_nll": 358.4, "sum_nll_ref": 357.1, "sum_kl": 0.7, "n_top1": 124}
        ],
        "flags": [],
    },
    "speed": {
        "prefill_tokens_per_s": 900.0,
        "time_to_first_token_ms": 600.0,
        "decode_ms_median": 50.0,
        "decode_ms_p10": 48.0,
        "decode_ms_p90": 55.0,
        "decode_tokens_per_s": 20.0,
        "ratio_to_baseline": 1.25,
        "ratio_low": 1.2,
        "ratio_high": 1.3,
        "baseline_ms_median": 40.0,
        "prefill_ratio_to_baseline": 1.02,
        "bandwidth_gb_s": 15.2,
        "bandwidth_drift": 0.02,
        "top1_agreement_64": 1.0,
        "steps": 70,
        "flags": [],
    },
    "memory": {
        "held_bytes": 4_194_304,
        "used_bytes": 4_000_000,
        "predicted_bytes": 4_194_304,
        "prefill_peak_bytes": 90_000_000,
        "decode_peak_bytes": 20_000_000,
        "weights_bytes": 538_000_000,
        "baseline_16bit_bytes": 11_796_480,
        "ratio_to_16bit": 0.35556,
        "counter": "rss",
        "reserved_prefill_peak_bytes": None,
        "flags": [],
    },
}
"""A plausible section of each kind; a test changes what it checks."""


def _ok(kind: str) -> Callable[..., Row]:
    def made(format: str, context: int, *, values: dict[str, Any] | None = None, **options: Any) -> Row:
        return row(kind, format, context, VALUES[kind] | (values or {}), **options)

    return made


quality_row, speed_row, memory_row = _ok("quality"), _ok("speed"), _ok("memory")


def sweep_rows(
    contexts: tuple[int, ...] = (512, 2048, 4096), formats: tuple[str, ...] = tuple(BITS), **options: Any
) -> list[Row]:
    """Every kind of cell of every format and context, and the baseline's speed and memory."""
    rows: list[Row] = []
    for context in contexts:
        rows += [_speed("dynamic", context, 1.0, **options), _memory("dynamic", context, **options)]
        for format in formats:
            rows += [_quality(format, context, **options), _memory(format, context, **options)]
            rows.append(_speed(format, context, SLOWDOWN[format], **options))
    return rows


def _quality(format: str, context: int, **options: Any) -> Row:
    kl = KL[format] * (context / 512) ** 0.2
    delta, half = 0.7 * kl, 0.3 * kl + 2e-5
    exact = 0 if format == "fp16" else BYTES_16_PER_TOKEN * min(EXACT_TOKENS, context)
    values = {
        "delta_nll": delta,
        "delta_nll_low": delta - half,
        "delta_nll_high": delta + half,
        "ppl_ratio": 2.718281828459045**delta,
        "kl_mean": kl,
        "kl_low": 0.8 * kl,
        "kl_high": 1.25 * kl,
        "top1_agreement": 1 - 0.4 * kl**0.5,
        "top5_agreement": 1 - 0.5 * kl**0.5,
        "positions": [
            {"start": 16 * i, "stop": 16 * i + 16, "n": 256, "kl_mean": kl * (0.8 + 0.05 * i)}
            for i in range(8)
        ],
        "bits_packed": BITS[format],
        "bits_cache": 8 * held_bytes(format, context) / (BYTES_16_PER_TOKEN / 2 * context),
        "bits_cache_16": 8 * (held_bytes(format, context) - exact) / (BYTES_16_PER_TOKEN / 2 * context),
        "cache_bytes": held_bytes(format, context),
    }
    return quality_row(format, context, values=values, **options)


def _speed(format: str, context: int, slowdown: float, **options: Any) -> Row:
    baseline = BASELINE_MS[context]
    ms = baseline * slowdown
    values = {
        "decode_ms_median": ms,
        "decode_ms_p10": 0.97 * ms,
        "decode_ms_p90": 1.08 * ms,
        "decode_tokens_per_s": 1000 / ms,
        "ratio_to_baseline": slowdown,
        "baseline_ms_median": baseline,
    }
    return speed_row(format, context, values=values, **options)


def held_bytes(format: str, context: int) -> int:
    if format in ("dynamic", "fp16"):
        return BYTES_16_PER_TOKEN * context * (2 if format == "dynamic" else 1)
    exact = min(EXACT_TOKENS, context)
    return int(BYTES_16_PER_TOKEN * (2 * exact + (context - exact) * BITS[format] / 16))


def _memory(format: str, context: int, **options: Any) -> Row:
    held, baseline = held_bytes(format, context), BYTES_16_PER_TOKEN * context
    values = {
        "held_bytes": held,
        "used_bytes": int(0.97 * held),
        "predicted_bytes": held,
        "baseline_16bit_bytes": baseline,
        "ratio_to_16bit": held / baseline,
    }
    return memory_row(format, context, values=values, **options)
