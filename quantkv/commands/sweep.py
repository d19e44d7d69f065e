"""`quantkv sweep`: measure what a YAML file asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.commands.arguments import Imports, Json, import_files, print_json
from quantkv.commands.reporting import Written, print_report
from quantkv.wording.streams import new_console, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from quantkv.sweep.config import Sweep
    from quantkv.sweep.summary import Summary


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the sweep's YAML file")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="override a setting, as in --set 'contexts=[512,1024]'"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="results folder, instead of run.out")] = None,
    executor: Annotated[
        str | None, typer.Option(help="local, ray or slurm, instead of run.executor; see docs/cluster.md")
    ] = None,
    imports: Imports = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="only this share of the grid")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the grid and stop")] = False,
    as_json: Json = False,
) -> None:
    """Measure every cell of a sweep that has no result yet, then write the report."""
    from quantkv.sweep.config import load_config

    console = new_console(stderr=as_json, lasting=not dry_run)
    import_files(imports)
    options = {"out": out, "executor": executor, "shard": shard}
    named = [f"run.{name}={json.dumps(str(value))}" for name, value in options.items() if value is not None]
    settings = load_config(config, [*(overrides or []), *named])
    if dry_run:
        _show_grid(settings, console, as_json)
    else:
        _measure(settings, console, as_json)


def _show_grid(settings: Sweep, console: Console, as_json: bool) -> None:
    with console.status("starting"):
        from quantkv.commands.dry_run import grid, print_grid
    if as_json:
        print_json(grid(settings))
    else:
        print_grid(settings, console)


def _measure(settings: Sweep, console: Console, as_json: bool) -> None:
    with console.status("starting"):
        from quantkv.sweep.naming import current_names
        from quantkv.sweep.run import run_sweep
    summary = run_sweep(settings, console=console)
    rows = [] if summary.interrupted else current_names(summary.rows(), settings)
    folder = Path(settings.run.out)
    written = Written()
    if rows:
        written = print_report(rows, folder, folder / "report", settings.report, console, table=not as_json)
    if as_json:
        print_json(_told(summary, written))
    else:
        _print_summary(summary, console)
    written.end()
    raise typer.Exit(summary.exit_code)


def _told(summary: Summary, written: Written) -> dict[str, Any]:
    names = ("total", "finished_before", "elsewhere", "failed_elsewhere", "unfinished", "interrupted")
    told: dict[str, Any] = {"out": str(summary.out), "measured": dict(summary.counts)}
    told |= {name: getattr(summary, name) for name in (*names, "exit_code")}
    return told | {"files": written.names, "problems": written.problems}


def _print_summary(summary: Summary, console: Console) -> None:
    counts = summary.counts
    parts = [f"{counts['ok']} cells measured", f"{summary.finished_before} were finished before"]
    parts += [f"{counts[status]} {status}" for status in ("failed", "skipped") if counts[status]]
    parts += [f"{summary.elsewhere} dealt with by other workers"] if summary.elsewhere else []
    lines = [f"{', '.join(parts)}; results in {summary.out}"]
    if summary.interrupted:
        lines += [f"stopped with {summary.unfinished} cells to go; the same command goes on from here"]
    elif summary.exit_code:
        lines += ["failed cells run again with the same command"]
    for line in lines:
        print_line(line, console)
