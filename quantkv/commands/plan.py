"""`quantkv plan`, `describe` and `formats`: what a cache will take, told without a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.arguments import Format, Json, Model, format_option, model_argument, show
from quantkv.wording.streams import new_console


def plan(
    model: Annotated[
        str, model_argument("a built-in name, hub id, folder, config.json or .gguf file; no weights are read")
    ],
    formats: Annotated[
        list[str] | None,
        format_option("a preset or short string, repeatable; 'presets' for all of them, the default"),
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
    from quantkv.planner.table import plan_table

    show(as_json, found.to_dict, lambda: plan_table(found))


def describe(
    model: Model,
    format: Format,
    context: Annotated[int, typer.Option(min=1, help="cached tokens")] = 2048,
    as_json: Json = False,
) -> None:
    """Show, layer by layer, what a format does to a model's cache and the bytes it will hold."""
    from quantkv.planner.describe import describe_cache

    found = describe_cache(model, format, context)
    show(as_json, found.to_dict, found.parts)


def formats(
    spec: Annotated[
        str | None, typer.Argument(metavar="[FORMAT]", help="a preset or short string: show its card")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the named formats: their short string, size, and which tokens stay exact; or one format's card."""
    if spec is not None:
        from quantkv.planner.card import card_parts, format_card

        show(as_json, lambda: format_card(spec), lambda: card_parts(spec))
        return
    from quantkv.planner.formats import format_records, formats_table

    show(as_json, lambda: {"formats": format_records()}, lambda: [formats_table()])
