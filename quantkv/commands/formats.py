"""`quantkv formats`: the named formats."""

from __future__ import annotations

import json

import typer

from quantkv.commands.arguments import Json
from quantkv.wording.streams import new_console
from quantkv.wording.wide import print_wide


def formats(as_json: Json = False) -> None:
    """List the named formats: their short string, size, and which tokens stay exact."""
    from quantkv.planner.formats import format_records, formats_table

    if as_json:
        typer.echo(json.dumps({"formats": format_records()}, indent=2))
        return

    print_wide(formats_table(), new_console())
