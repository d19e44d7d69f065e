"""The formats that tests of the core run over: all presets, and each codec with each sharing word.

The latter in small form: groups of 16, a flush chunk of 16, 8 recent tokens, 2 sinks and a reserve of 8: a
hundred tokens see several flushes. `test_spec.py` fails when a codec, a sharing word or a preset is missing.
"""

from __future__ import annotations

from quantkv import CacheSpec, parse_spec, presets

SMALL_WINDOW = "r8+f16+s2+k8"
SHARINGS = ("head", "token", "token-all", "channel", "chunk-head", "chunk")
GROUPED = ("token", "channel")
INTS = ("int2", "int3", "int4", "int5", "int6", "int8")
FLOAT8 = ("fp8-e4m3", "fp8-e5m2")
RAW = ("fp32", "fp16", "bf16", "exact")


def _with_sharing(codec: str, sharing: str) -> str:
    return f"{codec}-{sharing}" + ("@g16" if sharing in GROUPED else "")


COMBINATIONS = [f"{_with_sharing(c, s)}+{SMALL_WINDOW}" for c in (*INTS, *FLOAT8) for s in SHARINGS]
RAW_SPECS = [f"{codec}+{SMALL_WINDOW}" for codec in RAW]
OPTIONS = [
    f"int3-token@g16.sym+{SMALL_WINDOW}",
    f"int2-head@sym+{SMALL_WINDOW}",
    f"int8-head@sym.bf16+{SMALL_WINDOW}",
    f"int6-chunk-head@bf16+{SMALL_WINDOW}",
    f"int4-channel@g16.fp32+{SMALL_WINDOW}",
    f"int2-token@g16.near+{SMALL_WINDOW}",
    f"int4-token@g16.sym.fp32.near+{SMALL_WINDOW}",
    f"fp8-e4m3-head@fp32+{SMALL_WINDOW}",
]
MIXED = [
    "k.int8-channel@g16+r16+f16+v.int4-head+r4+f3+s2+k8",
    "k.fp16+r3+f1+v.int2-token@g8+r8+f5+s3+k0",
    "k.int2-channel@g16+r0+f32+v.int2-token@g16+r32+f1+s0+k8",
    "int4-head+r0+f1+s0+k0",
    "int4-head+r8+f16+s2+k8+l0.int8-channel@g16+l0.r8+l0.f16+l0.s2+l0.k8",
    "int2-chunk+r8+f16+s2+k8+l-1.fp16",
    "int4-head+r8+f16+s2+k8+q50+sliding",
]
PROOFS = [
    f"int4-head@had+{SMALL_WINDOW}",
    f"int4-head@ctr.w16+{SMALL_WINDOW}",
    f"int4-head@unrope.ctr.w16+{SMALL_WINDOW}",
    f"lm3@norm+{SMALL_WINDOW}",
    f"out3+{SMALL_WINDOW}",
]
"""A rotation, the state of a row, positions, a table behind a norm, a sparse term: each part of what a method
may declare, once."""
TABLES = [f"lm2@had.norm+{SMALL_WINDOW}", f"lm4@normall+{SMALL_WINDOW}"]
PRESETS = list(presets())
SMALL = [*COMBINATIONS, *RAW_SPECS, *OPTIONS, *PROOFS, *TABLES, *MIXED]
DEFAULT_SPECS = [*PRESETS, *SMALL]
A_FEW = [
    f"int4-head+{SMALL_WINDOW}",
    f"int3-channel@g16+{SMALL_WINDOW}",
    f"int6-chunk+{SMALL_WINDOW}",
    f"fp8-e4m3+{SMALL_WINDOW}",
    *MIXED[:4],
]
"""One of each kind of grouping, for tests whose cost does not allow all."""


def small_preset(name: str, recent: int = 8, flush: int = 32, sinks: int = 2) -> CacheSpec:
    """A preset with a short window, so that little data sees many flushes; published ones keep their own."""
    return parse_spec(name, recent=recent, flush=flush, sinks=sinks)
