"""`quantkv report`: tables, figures and a page from the rows of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quantkv.commands.arguments import Json
from quantkv.commands.reporting import Written, print_report
from quantkv.errors import QuantKVError


def report(
    folder: Annotated[Path, typer.Argument(help="a folder of results")],
    out: Annotated[Path | None, typer.Option(help="where to write; default FOLDER/report")] = None,
    html: Annotated[bool, typer.Option(help="also write report.html, one page with everything in it")] = True,
    as_json: Json = False,
) -> None:
    """Write tables, figures and a page from the results in a folder."""
    from rich.console import Console

    from quantkv.sweep.config import Report
    from quantkv.sweep.results import read_rows

    problems: list[str] = []
    rows = read_rows(folder, warn=problems.append)
    written = Written()
    if rows:
        console = Console(stderr=as_json)
        place = out or folder / "report"
        written = print_report(rows, folder, place, Report(html=html), console, table=not as_json)
    written.problems[:0] = problems
    if as_json and rows:
        typer.echo(json.dumps(_told(rows, written), indent=2))
    written.end()
    if not rows:
        raise QuantKVError(f"no results in {folder}: it holds no <kind>-<format>-c<context>-….json")


def _told(rows: list[dict[str, Any]], written: Written) -> dict[str, Any]:
    """The table of the report, every number in full, with the files."""
    from quantkv.report.summary import summary_frame
    from quantkv.sweep.results import strict_json

    records = summary_frame(rows).to_dict("records")
    return {
        "rows": len(rows),
        "table": strict_json(records),
        "files": [str(path) for path in written.files],
        "problems": written.problems,
    }
