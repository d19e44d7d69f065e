"""Options of the command itself: ``quantkv --version`` and ``quantkv --import FILE``."""

from __future__ import annotations

from typing import Annotated

import typer

from quantkv.commands.arguments import Imports, import_files
from quantkv.version import __version__


def show(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quantkv {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show, is_eager=True, help="print the version and exit")
    ] = False,
    imports: Imports = None,
) -> None:
    """Options of the command itself."""
    import_files(imports)
