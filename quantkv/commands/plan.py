"""`quantkv plan`: bytes of a model's cache, longest context and largest batch, without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.arguments import Json
from quantkv.commands.completion import complete_format, complete_model
from quantkv.wording.streams import new_console
from quantkv.wording.wide import print_wide


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="a built-in name, hub id, folder, config.json or .gguf file; no weights are read",
            autocompletion=complete_model,
        ),
    ],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            help="a preset or short string, repeatable; 'presets' for all of them, the default",
            autocompletion=complete_format,
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="such as 24GB or 24GiB; default: this machine's GPU, else its RAM")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="cached tokens; default 8192, or the model's limit")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="sequences side by side")] = 1,
    dtype: Annotated[str | None, typer.Option(help="the model's dtype; default: as its config says")] = None,
    weights_dtype: Annotated[
        str | None, typer.Option(help="how weights are held, if otherwise: a dtype, or bits each such as 4.5")
    ] = None,
    allowance: Annotated[str, typer.Option(help="memory to leave for activations and the like")] = "0B",
    revision: Annotated[str | None, typer.Option(help="of a hub id")] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="draw bytes against context: .png, .pdf or .svg"),
    ] = None,
    as_json: Json = False,
) -> None:
    """What fits: cache bytes for every format, longest context, largest batch, from a configuration alone."""

    with new_console(stderr=True).status("reading the configuration"):
        from quantkv.planner import plan as make_plan

        found = make_plan(
            model,
            formats,
            memory=memory,
            context=context,
            batch=batch,
            dtype=dtype,
            weights_dtype=weights_dtype,
            allowance=allowance,
            revision=revision,
        )
    if figure is not None:
        from quantkv.planner.figure import write_plan_figure

        write_plan_figure(found, figure)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    from quantkv.planner.table import plan_table

    console = new_console()
    for part in plan_table(found):
        print_wide(part, console)
