"""`quantkv paper`: the figures and tables of a paper, made again from the rows that it ships."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from quantkv.commands.arguments import Json, print_json
from quantkv.commands.reporting import Written
from quantkv.wording.streams import new_console, print_line


def paper(
    folder: Annotated[
        Path, typer.Argument(help="a folder of studies: folders with result rows in rows/", exists=True)
    ] = Path("experiments"),
    as_json: Json = False,
) -> None:
    """Make every figure and table of a folder of studies again, from their rows alone."""
    from quantkv.commands.paper_files import write_paper

    console = new_console(stderr=as_json)
    tell = partial(print_line, console=console)
    written = Written()
    written.files += write_paper(folder, warn=written.problems.append, tell=tell)
    if as_json:
        print_json({"files": written.names})
    else:
        for name in written.names:
            tell(f"  {name}")
    written.end()
