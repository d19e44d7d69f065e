"""`quantkv describe`: a model's cache in one format, layer by layer."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from quantkv.commands.arguments import Format, Json, Model
from quantkv.wording.streams import new_console
from quantkv.wording.wide import print_wide


def describe(
    model: Model,
    format: Format,
    context: Annotated[int, typer.Option(min=1, help="cached tokens")] = 2048,
    as_json: Json = False,
) -> None:
    """Show, layer by layer, what a format does to a model's cache and the bytes it will hold."""
    from quantkv.planner.describe import describe_cache

    found = describe_cache(model, format, context)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return

    console = new_console()
    for part in found.parts():
        print_wide(part, console)
