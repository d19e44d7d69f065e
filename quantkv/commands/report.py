"""`quantkv report`: tables, figures and a page from the rows of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.commands.arguments import Json, Results, print_json
from quantkv.commands.reporting import Written, print_report
from quantkv.errors import QuantKVError
from quantkv.wording.streams import new_console

if TYPE_CHECKING:
    from quantkv.sweep.config import Report
    from quantkv.watching.planned import PlannedCells

NO_ROWS = "no results in {folder}: it holds no <kind>-<format>-c<context>-….json"
NO_ROWS_OF = "no row in {folder} is of a cell of {config}; without --config, every row there is reported"


def report(
    folder: Results,
    config: Annotated[
        Path | None,
        typer.Option(help="a sweep's YAML file: the report that this sweep ends with, of its cells alone"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="where to write; default FOLDER/report")] = None,
    html: Annotated[
        bool | None,
        typer.Option(
            "--html/--no-html", help="report.html, one page with everything in it; default yes, or as CONFIG"
        ),
    ] = None,
    together: Annotated[
        list[str] | None,
        typer.Option(help="model or dtype, repeatable: one more table and figure of each kind across them"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write tables, figures and a page from the results in a folder."""
    from quantkv.rows.files import read_rows
    from quantkv.watching.planned import PlannedCells

    problems: list[str] = []
    plan = None if config is None else PlannedCells(config, folder)  # first: its file brings kinds of rows
    rows, chosen = _chosen(read_rows(folder, warn=problems.append), plan)
    given = {"html": html, "together": together}
    chosen = chosen.model_copy(update={name: value for name, value in given.items() if value is not None})
    written = Written()
    if rows:
        console = new_console(stderr=as_json)
        written = print_report(rows, folder, out or folder / "report", chosen, console, table=not as_json)
    written.problems[:0] = problems
    if as_json and rows:
        print_json(_told(rows, written))
    written.end()
    if not rows:
        raise QuantKVError((NO_ROWS_OF if config else NO_ROWS).format(folder=folder, config=config))


def _chosen(rows: list[dict[str, Any]], plan: PlannedCells | None) -> tuple[list[dict[str, Any]], Report]:
    """The rows to report, in their order and under the sweep's current names, and the report's settings."""
    from quantkv.sweep.config import Report

    if plan is None:
        return rows, Report()
    from quantkv.sweep.naming import current_names

    mine = {id(row) for row in plan.answering(rows)}
    chosen = [row for row in rows if id(row) in mine]
    return current_names(chosen, plan.settings), plan.settings.report


def _told(rows: list[dict[str, Any]], written: Written) -> dict[str, Any]:
    """The table of the report, every number in full, with the files."""
    from quantkv.rows.row import strict_json
    from quantkv.studies.study import summary_frame

    table = strict_json(summary_frame(rows).to_dict("records"))
    return {"rows": len(rows), "table": table, "files": written.names, "problems": written.problems}
