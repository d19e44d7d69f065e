"""`quantkv bench`: a command for each benchmark. What costs time to import is imported when one runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.bench.settings import BENCHMARKS, Settings
from quantkv.errors import QuantKVError
from quantkv.wording.streams import new_console, print_line

if TYPE_CHECKING:
    from rich.status import Status

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


def _add(settings: type[Settings]) -> None:
    """A benchmark's command, from its settings; it is named as they and the file that measures are."""
    name = settings.__name__.removesuffix("Settings").lower()

    def command(**given: Any) -> None:
        _run(name, _read(settings, given), _read(Output, given))

    command.__signature__ = Signature([*_options(settings), *_options(Output)])  # type: ignore[attr-defined]
    app.command(name, help=(settings.__doc__ or "").partition("\n\n")[0])(command)


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


def _bind_threads() -> None:
    """Each thread to a core of its own, before torch is imported, which reads this: some systems leave two on
    one core for as long as a process lives."""
    from quantkv.cores import cores

    if cores() > 1 and "torch" not in sys.modules:
        os.environ.setdefault("OMP_PROC_BIND", "true")


def _run(name: str, settings: Any, output: Output) -> None:
    _bind_threads()
    from quantkv.bench.report import as_json
    from quantkv.bench.table import markdown, print_report

    measure = getattr(import_module(f"quantkv.bench.{name}"), f"bench_{name}")
    file, console = output.json_file, new_console()
    alone = str(file) == "-"
    if file is not None and not alone:
        _check_writable(file)
    with new_console(stderr=True).status("starting") as status:
        report = measure(settings, partial(_tell, status))
    if alone:
        typer.echo(as_json(report))
    elif output.as_markdown:
        typer.echo(markdown(report))
    else:
        print_report(report, console)
    if file is not None and not alone:
        file.write_text(as_json(report) + "\n", encoding="utf-8")
        print_line(f"  {file}", console)


def _tell(status: Status, what: str, done: bool = False) -> None:
    """What is measured now moves on, what came out stays."""
    if done:
        status.console.print(what)
    else:
        status.update(what)


def _check_writable(path: Path) -> None:
    """Raise now rather than after the measurement where the report could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise QuantKVError(f"cannot write {path}: {error.strerror}") from error


for _settings in BENCHMARKS:
    _add(_settings)
