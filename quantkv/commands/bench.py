"""The options of `quantkv bench`. What costs time to import is imported when a benchmark runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.errors import QuantKVError
from quantkv.wording.streams import new_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

app = typer.Typer(
    help="Time attention, decoding and packing beside what this machine can do at best.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

FORMATS = "int8-channel,int8-head,int4-head,int4-channel,fp16,kivi-2"
Formats = Annotated[str, typer.Option(metavar="F,F,…", help="presets or short strings, comma-separated")]
Threads = Annotated[int, typer.Option(help="threads of every arm")]
Rounds = Annotated[int, typer.Option(help="rounds; every arm runs in each, in random order")]
Isa = Annotated[str | None, typer.Option(help="instruction set of the native engine: v2, v3 or v4")]
Seed = Annotated[int, typer.Option(help="of the random numbers and of the order of arms")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write JSON; - prints it instead")]
Markdown = Annotated[bool, typer.Option("--markdown", help="print the table in Markdown")]
Heads = Annotated[int, typer.Option(help="key-value heads")]
HeadDim = Annotated[int, typer.Option(help="channels of a head")]

Measure = Callable[["Status"], dict[str, Any]]


@app.command()
def attention(
    heads: Heads = 8,
    query_heads: Annotated[int, typer.Option(help="query heads")] = 32,
    head_dim: HeadDim = 128,
    tokens: Annotated[str, typer.Option(metavar="N,N,…", help="cached tokens")] = "32768,131072",
    formats: Formats = FORMATS,
    threads: Threads = 1,
    rounds: Rounds = 11,
    isa: Isa = None,
    cold: Annotated[bool, typer.Option(help="empty the processor's caches before each run")] = True,
    seed: Seed = 0,
    json_file: Json = None,
    as_markdown: Markdown = False,
) -> None:
    """One decode step of one layer: each format beside SDPA and beside decoding the history first."""
    given: dict[str, Any] = {
        "heads": heads,
        "query_heads": query_heads,
        "head_dim": head_dim,
        "tokens": _counts("tokens", tokens),
        "formats": _names(formats),
        "threads": threads,
        "rounds": rounds,
        "isa": isa,
        "cold": cold,
        "seed": seed,
    }

    def measure(status: Status) -> dict[str, Any]:
        from quantkv.bench.attention import AttentionSettings, bench_attention

        return bench_attention(AttentionSettings(**given), status.update)

    _run(measure, json_file, as_markdown)


@app.command()
def decode(
    model: Annotated[str, typer.Argument(help="a model: built-in name, hub id, folder or .gguf file")],
    contexts: Annotated[str, typer.Option(metavar="N,N,…", help="cached tokens")] = "512,6000,32000",
    formats: Formats = FORMATS,
    threads: Threads = 1,
    rounds: Rounds = 10,
    fill: Annotated[str, typer.Option(help="synthetic (random keys and values) or prefill")] = "synthetic",
    prefill: Annotated[int, typer.Option(help="tokens of the prefill that is timed too; 0: none")] = 6000,
    prefill_rounds: Annotated[int, typer.Option(help="rounds of the prefill")] = 3,
    stock: Annotated[bool, typer.Option(help="the quantized caches of transformers too")] = True,
    dtype: Annotated[str, typer.Option(help="of the model")] = "float32",
    isa: Isa = None,
    seed: Seed = 0,
    json_file: Json = None,
    as_markdown: Markdown = False,
) -> None:
    """A whole model, ms per token with each cache beside DynamicCache; and a prefill."""
    given: dict[str, Any] = {
        "model": model,
        "contexts": _counts("contexts", contexts),
        "formats": _names(formats),
        "threads": threads,
        "rounds": rounds,
        "fill": fill,
        "prefill": prefill,
        "prefill_rounds": prefill_rounds,
        "stock": stock,
        "dtype": dtype,
        "isa": isa,
        "seed": seed,
    }

    def measure(status: Status) -> dict[str, Any]:
        from quantkv.bench.decode import DecodeSettings, bench_decode

        return bench_decode(DecodeSettings(**given), status.update, status.console.print)

    _run(measure, json_file, as_markdown)


@app.command()
def encode(
    heads: Heads = 8,
    head_dim: HeadDim = 128,
    tokens: Annotated[int, typer.Option(help="tokens of the prefill")] = 8192,
    formats: Formats = FORMATS,
    threads: Threads = 1,
    rounds: Rounds = 11,
    isa: Isa = None,
    seed: Seed = 0,
    json_file: Json = None,
    as_markdown: Markdown = False,
) -> None:
    """Packing a prefill, one flush chunk and one raw token: the native engine beside the PyTorch codec."""
    given: dict[str, Any] = {
        "heads": heads,
        "head_dim": head_dim,
        "tokens": tokens,
        "formats": _names(formats),
        "threads": threads,
        "rounds": rounds,
        "isa": isa,
        "seed": seed,
    }

    def measure(status: Status) -> dict[str, Any]:
        from quantkv.bench.encode import EncodeSettings, bench_encode

        return bench_encode(EncodeSettings(**given), status.update)

    _run(measure, json_file, as_markdown)


@app.command()
def simulate(
    model: Annotated[str, typer.Argument(help="a model: built-in name, hub id, folder or .gguf file")],
    tokens: Annotated[str, typer.Option(metavar="N,N,…", help="length of the sequence")] = "512,1024",
    formats: Formats = "int4-head,kivi-2",
    threads: Threads = 1,
    rounds: Rounds = 3,
    dtype: Annotated[str, typer.Option(help="of the model")] = "float32",
    seed: Seed = 0,
    json_file: Json = None,
    as_markdown: Markdown = False,
) -> None:
    """A whole sequence as the packed cache would decode it, in one pass, beside the plain forward pass."""
    given: dict[str, Any] = {
        "model": model,
        "tokens": _counts("tokens", tokens),
        "formats": _names(formats),
        "threads": threads,
        "rounds": rounds,
        "dtype": dtype,
        "seed": seed,
    }

    def measure(status: Status) -> dict[str, Any]:
        from quantkv.bench.simulate import SimulateSettings, bench_simulate

        return bench_simulate(SimulateSettings(**given), status.update)

    _run(measure, json_file, as_markdown)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _counts(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _names(text))
    except ValueError:
        raise QuantKVError(f"--{option} takes whole numbers joined by commas, not {text!r}") from None


def _bind_threads() -> None:
    """Each thread to a core of its own, before torch is imported, which reads this: some systems leave two on
    one core for as long as a process lives."""
    from quantkv.cores import cores

    if cores() > 1 and "torch" not in sys.modules:
        os.environ.setdefault("OMP_PROC_BIND", "true")


def _run(measure: Measure, file: Path | None, as_markdown: bool) -> None:
    _bind_threads()
    from quantkv.bench.report import check_writable

    check_writable(file)
    with new_console(stderr=True).status("starting") as status:
        report = measure(status)
    _show(report, file, as_markdown, new_console())


def _show(report: dict[str, Any], file: Path | None, as_markdown: bool, console: Console) -> None:
    from quantkv.bench.report import as_json
    from quantkv.bench.table import markdown, print_report

    if file is not None and str(file) == "-":
        typer.echo(as_json(report))
        return
    if as_markdown:
        typer.echo(markdown(report))
    else:
        print_report(report, console)
    if file is not None:
        file.write_text(as_json(report) + "\n", encoding="utf-8")
        console.print(f"  {file}", highlight=False, markup=False, soft_wrap=True)
