"""`quantkv paper`: the figures and tables of a paper, made again from the rows that it ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def paper(
    folder: Annotated[
        Path, typer.Argument(help="a folder of studies: folders with result rows in rows/", exists=True)
    ] = Path("experiments"),
) -> None:
    """Make every figure and table of a folder of studies again, from their rows alone."""
    from rich.console import Console

    from quantkv.report.paper import write_paper

    console = Console()
    written = write_paper(
        folder, tell=lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
    )
    for path in written:
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
