"""`quantkv compare`: two folders, two rows, or two formats of one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.arguments import Json
from quantkv.commands.completion import complete_format
from quantkv.wording.streams import new_console
from quantkv.wording.wide import print_wide


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="a folder of results, or one row file")],
    b: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="the other; left out with two formats")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            help="given twice: the first format in A beside the second in B, or in A too",
            autocompletion=complete_format,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What changed from A to B, with intervals. Exits with 12 if a number is worse, 3 if a cell broke."""

    from quantkv.comparison import compare as look

    found = look(a, b, formats=formats)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        from quantkv.comparison.table import comparison_lines

        console = new_console()
        for part in comparison_lines(found):
            print_wide(part, console)
    raise typer.Exit(found.exit_code)
