"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.completion import complete_format, complete_model

Model = Annotated[
    str,
    typer.Argument(
        help="a model: built-in name, hub id, folder or .gguf file", autocompletion=complete_model
    ),
]
Format = Annotated[
    str, typer.Option("--format", "-f", help="a preset or short string", autocompletion=complete_format)
]
REPEATABLE = typer.Option(
    "--format", "-f", help="a preset or short string; repeatable", autocompletion=complete_format
)
Formats = Annotated[list[str], REPEATABLE]
NoneOrMoreFormats = Annotated[list[str] | None, REPEATABLE]
Text = Annotated[str, typer.Option(help="python-docs, wikitext-2 or a text file")]
Dtype = Annotated[str, typer.Option(help="the model's dtype")]
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
