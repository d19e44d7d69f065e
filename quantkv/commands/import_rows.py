"""`quantkv import`: numbers of others into a results folder, marked as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.arguments import Json


def import_rows(
    file: Annotated[Path, typer.Argument(help="a .csv, .json or .yaml file with model, format, context, …")],
    source: Annotated[
        str | None, typer.Option(help="where the numbers are from, such as 'KIVI, table 3'")
    ] = None,
    out: Annotated[Path, typer.Option(help="the results folder")] = Path("results/sweep"),
    as_json: Json = False,
) -> None:
    """Import numbers that others measured; reports show them apart and never rank them."""
    from quantkv.rows.published import import_file

    written = import_file(file, out, source)
    if as_json:
        rows = [json.loads(path.read_text(encoding="utf-8")) for path in written]
        typer.echo(json.dumps({"rows": rows, "files": [str(path) for path in written]}, indent=2))
        return
    typer.echo(f"{len(written)} rows imported into {out}")
