"""What each benchmark can be told. Its command is made of that: the first line is the help, a field an
option, the annotation its help. A field that holds several is given as one text, joined by commas."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from quantkv.cores import cores
from quantkv.errors import QuantKVError

Model = Annotated[str, typer.Argument(help="a model: built-in name, hub id, folder or .gguf file")]
Dtype = Annotated[str, typer.Option(help="of the model")]
Heads = Annotated[int, typer.Option(help="key-value heads")]
HeadDim = Annotated[int, typer.Option(help="channels of a head")]
Cached = Annotated[tuple[int, ...], typer.Option(metavar="N,N,…", help="cached tokens")]
Lengths = Annotated[tuple[int, ...], typer.Option(metavar="N,N,…", help="length of the sequence")]
Formats = Annotated[
    tuple[str, ...], typer.Option(metavar="F,F,…", help="presets or short strings, comma-separated")
]
Rounds = Annotated[int, typer.Option(help="rounds; every arm runs in each, in random order")]
Isa = Annotated[str | None, typer.Option(help="instruction set of the native engine: v2, v3 or v4")]

FILLS = ("prefill", "synthetic")
LEAST = {"prefill": 0, "seed": -math.inf}
"""The least value of a number; of those that are not named here 1."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for every benchmark; batch 1."""

    formats: Formats = ("int8-channel", "int8-head", "int4-head", "int4-channel", "fp16", "kivi-2")
    threads: Annotated[int, typer.Option(help="threads of every arm")] = 1
    rounds: Rounds = 11
    seed: Annotated[int, typer.Option(help="of the random numbers and of the order of arms")] = 0

    def check(self) -> None:
        """Raise where a number is too small, or threads have no core each: that would time the scheduler."""
        if not self.formats:
            raise QuantKVError("--formats names no format")
        for name, value in asdict(self).items():
            number = min(value, default=0) if isinstance(value, tuple) else value
            if type(number) is int and number < LEAST.get(name, 1):
                option, least = name.replace("_", "-"), LEAST.get(name, 1)
                raise QuantKVError(f"--{option} must be at least {least}, not {number}")
        if self.threads > cores():
            legal = f"at most {cores()}, the cores of this process"
            raise QuantKVError(f"--threads must be {legal}, not {self.threads}")


@dataclass(frozen=True, kw_only=True)
class AttentionSettings(Settings):
    """One decode step of one layer: each format beside SDPA and beside decoding the history first.

    `tokens` are cached ones, the newest included. `cold` reads a large buffer before each run, so that no
    arm finds its keys and values in the processor's caches, as between two layers of a model.
    """

    heads: Heads = 8
    query_heads: Annotated[int, typer.Option(help="query heads")] = 32
    head_dim: HeadDim = 128
    tokens: Cached = (32768, 131072)
    isa: Isa = None
    cold: Annotated[bool, typer.Option(help="empty the processor's caches before each run")] = True

    def check(self) -> None:
        super().check()
        if self.query_heads % self.heads:
            raise QuantKVError(f"--query-heads {self.query_heads} is not a multiple of --heads {self.heads}")

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Those of our own arms: 2 beside 1, where there are the cores."""
        return (1, 2) if self.threads == 1 and cores() >= 2 else (self.threads,)


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(Settings):
    """A whole model, ms per token with each cache beside DynamicCache; and a prefill.

    `prefill` 0 times no prefill; `stock` adds the quantized caches of transformers.
    """

    model: Model
    contexts: Cached = (512, 6000, 32000)
    rounds: Rounds = 10
    fill: Annotated[str, typer.Option(help="synthetic (random keys and values) or prefill")] = "synthetic"
    prefill: Annotated[int, typer.Option(help="tokens of the prefill that is timed too; 0: none")] = 6000
    prefill_rounds: Annotated[int, typer.Option(help="rounds of the prefill")] = 3
    stock: Annotated[bool, typer.Option(help="the quantized caches of transformers too")] = True
    dtype: Dtype = "float32"
    isa: Isa = None

    def check(self) -> None:
        super().check()
        if self.fill not in FILLS:
            raise QuantKVError(f"--fill must be one of {', '.join(FILLS)}, not {self.fill!r}")


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(Settings):
    """Packing a prefill, one flush chunk and one raw token: the native engine beside the PyTorch codec.

    `tokens` is the length of the prefill.
    """

    heads: Heads = 8
    head_dim: HeadDim = 128
    tokens: Annotated[int, typer.Option(help="tokens of the prefill")] = 8192
    isa: Isa = None


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(Settings):
    """A whole sequence as the packed cache would decode it, in one pass, beside the plain forward pass.

    `tokens` random ones; logits of the last position alone are computed.
    """

    model: Model
    tokens: Lengths = (512, 1024)
    formats: Formats = ("int4-head", "kivi-2")
    rounds: Rounds = 3
    dtype: Dtype = "float32"


BENCHMARKS = (AttentionSettings, DecodeSettings, EncodeSettings, SimulateSettings)
