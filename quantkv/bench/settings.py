"""What each benchmark can be told. A field is an option of `quantkv bench`, and its annotation the help; one
that holds several is given there as one text, joined by commas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from quantkv.cores import cores
from quantkv.errors import QuantKVError

Model = Annotated[str, typer.Argument(help="a model: built-in name, hub id, folder or .gguf file")]
Formats = Annotated[
    tuple[str, ...], typer.Option(metavar="F,F,…", help="presets or short strings, comma-separated")
]
Cached = Annotated[tuple[int, ...], typer.Option(metavar="N,N,…", help="cached tokens")]
Lengths = Annotated[tuple[int, ...], typer.Option(metavar="N,N,…", help="length of the sequence")]
Threads = Annotated[int, typer.Option(help="threads of every arm")]
Rounds = Annotated[int, typer.Option(help="rounds; every arm runs in each, in random order")]
Isa = Annotated[str | None, typer.Option(help="instruction set of the native engine: v2, v3 or v4")]
Seed = Annotated[int, typer.Option(help="of the random numbers and of the order of arms")]
Heads = Annotated[int, typer.Option(help="key-value heads")]
HeadDim = Annotated[int, typer.Option(help="channels of a head")]
Dtype = Annotated[str, typer.Option(help="of the model")]

FORMATS = ("int8-channel", "int8-head", "int4-head", "int4-channel", "fp16", "kivi-2")
FILLS = ("prefill", "synthetic")


@dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    """Batch 1; `tokens` are cached ones, the newest included. `cold` reads a large buffer before each run,
    so that no arm finds its keys and values in the processor's caches, as between two layers of a model."""

    heads: Heads = 8
    query_heads: Annotated[int, typer.Option(help="query heads")] = 32
    head_dim: HeadDim = 128
    tokens: Cached = (32768, 131072)
    formats: Formats = FORMATS
    threads: Threads = 1
    rounds: Rounds = 11
    isa: Isa = None
    cold: Annotated[bool, typer.Option(help="empty the processor's caches before each run")] = True
    seed: Seed = 0

    def check(self) -> None:
        check_counts(heads=self.heads, query_heads=self.query_heads, head_dim=self.head_dim)
        check_counts(rounds=self.rounds, tokens=min(self.tokens, default=0))
        check_threads(self.threads)
        if self.query_heads % self.heads:
            raise QuantKVError(f"--query-heads {self.query_heads} is not a multiple of --heads {self.heads}")

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Those of our own arms: 2 beside 1, where there are the cores."""
        return (1, 2) if self.threads == 1 and cores() >= 2 else (self.threads,)


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Batch 1. `prefill` 0 times no prefill; `stock` adds the quantized caches of transformers."""

    model: Model
    contexts: Cached = (512, 6000, 32000)
    formats: Formats = FORMATS
    threads: Threads = 1
    rounds: Rounds = 10
    fill: Annotated[str, typer.Option(help="synthetic (random keys and values) or prefill")] = "synthetic"
    prefill: Annotated[int, typer.Option(help="tokens of the prefill that is timed too; 0: none")] = 6000
    prefill_rounds: Annotated[int, typer.Option(help="rounds of the prefill")] = 3
    stock: Annotated[bool, typer.Option(help="the quantized caches of transformers too")] = True
    dtype: Dtype = "float32"
    isa: Isa = None
    seed: Seed = 0

    def check(self) -> None:
        check_counts(rounds=self.rounds, contexts=min(self.contexts, default=0))
        check_threads(self.threads)
        check_counts(prefill_rounds=self.prefill_rounds)
        check_counts(0, prefill=self.prefill)
        if self.fill not in FILLS:
            raise QuantKVError(f"--fill must be one of {', '.join(FILLS)}, not {self.fill!r}")


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """Batch 1; `tokens` is the length of the prefill."""

    heads: Heads = 8
    head_dim: HeadDim = 128
    tokens: Annotated[int, typer.Option(help="tokens of the prefill")] = 8192
    formats: Formats = FORMATS
    threads: Threads = 1
    rounds: Rounds = 11
    isa: Isa = None
    seed: Seed = 0

    def check(self) -> None:
        check_counts(heads=self.heads, head_dim=self.head_dim, tokens=self.tokens, rounds=self.rounds)
        check_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class SimulateSettings:
    """Batch 1, `tokens` random ones; logits of the last position alone are computed."""

    model: Model
    tokens: Annotated[tuple[int, ...], typer.Option(metavar="N,N,…", help="length of the sequence")] = (
        512,
        1024,
    )
    formats: Formats = ("int4-head", "kivi-2")
    threads: Threads = 1
    rounds: Rounds = 3
    dtype: Dtype = "float32"
    seed: Seed = 0

    def check(self) -> None:
        check_counts(rounds=self.rounds, tokens=min(self.tokens, default=0))
        check_threads(self.threads)


def check_counts(least: int = 1, **counts: int) -> None:
    """Raise unless each number is at least `least`, naming the first that is not."""
    for name, value in counts.items():
        if value < least:
            raise QuantKVError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")


def check_threads(count: int) -> None:
    """Raise unless so many threads have a core each: more would time the scheduler."""
    check_counts(threads=count)
    if count > cores():
        raise QuantKVError(f"--threads must be at most {cores()}, the cores of this process, not {count}")
