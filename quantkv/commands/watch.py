"""`quantkv watch`: a running sweep, from the files of its results folder alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkv.commands.arguments import Results, print_json
from quantkv.wording.streams import can_redraw, new_console

if TYPE_CHECKING:
    from rich.console import Console

    from quantkv.watching.snapshot import Folder, Snapshot

SECONDS = 1.0
FAILED = 3


def watch(
    folder: Results,
    config: Annotated[
        Path | None,
        typer.Option(help="the sweep's YAML file: what is still to come, and how long that takes"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="print how it stands and stop")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print how it stands as JSON and stop")] = False,
) -> None:
    """Watch a sweep. Ends with it: 0 done, 3 some cells failed; Ctrl-C ends it earlier with 130."""
    from quantkv.watching.snapshot import Folder

    plan = None
    if config is not None:
        from quantkv.watching.planned import PlannedCells

        plan = PlannedCells(config, folder)
    watched = Folder(folder, plan)
    if as_json:
        print_json(watched.look().to_dict())
        return
    console = new_console()
    if once:
        from quantkv.watching.view import view

        console.print(view(watched.look()), highlight=False, soft_wrap=not console.is_terminal)
        return
    last = _live(watched, console) if can_redraw(console) else _lines(watched)
    raise typer.Exit(FAILED if last.status("failed") else 0)


def _live(folder: Folder, console: Console) -> Snapshot:
    from rich.live import Live

    from quantkv.watching.view import view

    with Live(console=console, auto_refresh=False) as screen:
        for seen in _until_done(folder):
            screen.update(view(seen), refresh=True)
    return seen


def _lines(folder: Folder) -> Snapshot:
    """A line whenever a count changes: what a log can hold."""
    from quantkv.watching.view import log_line

    told = None
    for seen in _until_done(folder):
        counts = (seen.counts, seen.running, seen.stale, seen.done)
        if counts != told:
            typer.echo(log_line(seen))
            told = counts
    return seen


def _until_done(folder: Folder) -> Iterator[Snapshot]:
    """How it stands, again and again; at least once."""
    while True:
        yield (seen := folder.look())
        if seen.done:
            return
        time.sleep(SECONDS)
