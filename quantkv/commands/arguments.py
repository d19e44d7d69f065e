"""Arguments that several commands share, what a shell offers for them after TAB, and how results are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.named import NAMES
from quantkv.wording.streams import new_console, print_wide

if TYPE_CHECKING:
    from rich.console import RenderableType

# Spelled out: to ask the packages that know takes seconds of imports at every key. A test holds both equal.
MODELS = (
    "smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m", "random-llama", "random-qwen2", "random-qwen3",
    "random-mistral", "random-gemma3", "random-gpt2",
)  # fmt: skip


def complete_format(incomplete: str) -> list[str]:
    return [name for name in NAMES if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    return [name for name in MODELS if name.startswith(incomplete)]


def model_argument(help: str) -> Any:
    return typer.Argument(help=help, autocompletion=complete_model)


def format_option(help: str) -> Any:
    return typer.Option("--format", "-f", help=help, autocompletion=complete_format)


Model = Annotated[str, model_argument("a model: built-in name, hub id, folder or .gguf file")]
Format = Annotated[str, format_option("a preset or short string")]
Formats = Annotated[list[str], format_option("a preset or short string; repeatable")]
NoneOrMoreFormats = Annotated[list[str] | None, format_option("a preset or short string; repeatable")]
Text = Annotated[str, typer.Option(help="python-docs, wikitext-2 or a text file")]
Dtype = Annotated[str, typer.Option(help="the model's dtype")]
Results = Annotated[Path, typer.Argument(help="a folder of results")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Imports = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        metavar="FILE",
        help="a Python file that registers codecs, policies or kinds of measurement; repeatable",
    ),
]


def import_files(paths: list[Path] | None) -> None:
    from quantkv.plugins import import_file

    for path in paths or []:
        import_file(path)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def show(as_json: bool, value: Callable[[], Any], parts: Callable[[], Iterable[RenderableType]]) -> None:
    """Print what was found: its ``value`` as JSON, or its ``parts`` as wide as they are."""
    if as_json:
        print_json(value())
        return
    console = new_console()
    for part in parts():
        print_wide(part, console)
