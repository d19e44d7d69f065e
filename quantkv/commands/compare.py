"""`quantkv compare`: two folders, two rows, or two formats of one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.arguments import Json, format_option, show


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="a folder of results, or one row file")],
    b: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="the other; left out with two formats")
    ] = None,
    formats: Annotated[
        list[str] | None,
        format_option("given twice: the first format in A beside the second in B, or in A too"),
    ] = None,
    as_json: Json = False,
) -> None:
    """What changed from A to B, with intervals. Exits with 12 if a number is worse, 3 if a cell broke."""
    from quantkv.comparison import compare as look

    found = look(a, b, formats=formats)
    from quantkv.comparison.table import comparison_lines

    show(as_json, found.to_dict, lambda: comparison_lines(found))
    raise typer.Exit(found.exit_code)
