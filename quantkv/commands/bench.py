"""`quantkv bench`: a command for each benchmark. What costs time to import is imported when one runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.bench.settings import AttentionSettings, DecodeSettings, EncodeSettings, SimulateSettings
from quantkv.errors import QuantKVError
from quantkv.wording.streams import new_console, print_line

if TYPE_CHECKING:
    from rich.status import Status

    from quantkv.bench.report import Report

    Measure = Callable[[Any, Status], Report]

app = typer.Typer(
    help="Time attention, decoding and packing beside what this machine can do at best.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True)
class Output:
    """Where a report goes beside the table."""

    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write JSON; - prints it instead")
    ] = None
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print the table in Markdown")] = False


def benchmark(settings: type[Any]) -> Callable[[Measure], None]:
    """Makes a command of what measures: its options are the fields of the settings."""

    def register(measure: Measure) -> None:
        def command(**given: Any) -> None:
            _run(measure, _read(settings, given), _read(Output, given))

        command.__signature__ = Signature([*_options(settings), *_options(Output)])  # type: ignore[attr-defined]
        app.command(measure.__name__, help=measure.__doc__)(command)

    return register


def _options(settings: type[Any]) -> Iterator[Parameter]:
    """A field of several is one text here."""
    for option in signature(settings, eval_str=True).parameters.values():
        if isinstance(option.default, tuple):
            text = Annotated[str, option.annotation.__metadata__[0]]
            option = option.replace(annotation=text, default=",".join(map(str, option.default)))
        yield option.replace(kind=Parameter.KEYWORD_ONLY)


def _read(settings: type[Any], given: dict[str, Any]) -> Any:
    values = {}
    for name, option in signature(settings).parameters.items():
        values[name] = given[name]
        if isinstance(option.default, tuple):
            values[name] = _parts(name, given[name], type(option.default[0]))
    return settings(**values)


def _parts(option: str, text: str, kind: type[Any]) -> tuple[Any, ...]:
    try:
        return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise QuantKVError(f"--{option} takes whole numbers joined by commas, not {text!r}") from None


@benchmark(AttentionSettings)
def attention(settings: AttentionSettings, status: Status) -> Report:
    """One decode step of one layer: each format beside SDPA and beside decoding the history first."""
    from quantkv.bench.attention import bench_attention

    return bench_attention(settings, status.update)


@benchmark(DecodeSettings)
def decode(settings: DecodeSettings, status: Status) -> Report:
    """A whole model, ms per token with each cache beside DynamicCache; and a prefill."""
    from quantkv.bench.decode import bench_decode

    return bench_decode(settings, status.update, status.console.print)


@benchmark(EncodeSettings)
def encode(settings: EncodeSettings, status: Status) -> Report:
    """Packing a prefill, one flush chunk and one raw token: the native engine beside the PyTorch codec."""
    from quantkv.bench.encode import bench_encode

    return bench_encode(settings, status.update)


@benchmark(SimulateSettings)
def simulate(settings: SimulateSettings, status: Status) -> Report:
    """A whole sequence as the packed cache would decode it, in one pass, beside the plain forward pass."""
    from quantkv.bench.simulate import bench_simulate

    return bench_simulate(settings, status.update)


def _bind_threads() -> None:
    """Each thread to a core of its own, before torch is imported, which reads this: some systems leave two on
    one core for as long as a process lives."""
    from quantkv.cores import cores

    if cores() > 1 and "torch" not in sys.modules:
        os.environ.setdefault("OMP_PROC_BIND", "true")


def _run(measure: Measure, settings: Any, output: Output) -> None:
    _bind_threads()
    from quantkv.bench.report import as_json
    from quantkv.bench.table import markdown, print_report

    file, console = output.json_file, new_console()
    alone = str(file) == "-"
    if file is not None and not alone:
        _check_writable(file)
    with new_console(stderr=True).status("starting") as status:
        report = measure(settings, status)
    if alone:
        typer.echo(as_json(report))
    elif output.as_markdown:
        typer.echo(markdown(report))
    else:
        print_report(report, console)
    if file is not None and not alone:
        file.write_text(as_json(report) + "\n", encoding="utf-8")
        print_line(f"  {file}", console)


def _check_writable(path: Path) -> None:
    """Raise now rather than after the measurement where the report could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise QuantKVError(f"cannot write {path}: {error.strerror}") from error
