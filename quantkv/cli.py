"""The ``quantkv`` command. What costs time to import is imported by the command that needs it.

Exit codes: 0 done, 2 wrong input (one line says what), 3 some cells failed, 130 interrupted; `check` also
10 caution and 11 unfit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from quantkv.bench.cli import app as bench
from quantkv.commands.check import check
from quantkv.commands.compare import compare
from quantkv.commands.import_rows import import_rows
from quantkv.commands.inspect import inspect
from quantkv.commands.lm_eval import SETTINGS, lm_eval
from quantkv.commands.paper import paper
from quantkv.commands.plan import plan
from quantkv.commands.results import results
from quantkv.commands.watch import watch
from quantkv.commands.wide import print_wide
from quantkv.errors import QuantKVError

if TYPE_CHECKING:
    from rich.console import Console

    from quantkv.sweep.config import Report
    from quantkv.sweep.summary import Summary


class Commands(TyperGroup):
    """Turns the errors a user can cause into one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except QuantKVError as error:
            for line in str(error).splitlines():
                typer.echo(f"quantkv: {line}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("quantkv: interrupted", err=True)
            raise typer.Exit(130) from None


# Idle OpenMP threads that spin make torch many times slower as soon as anything else runs on the machine.
# Read once, when torch is imported, and inherited by the processes of memory cells.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    cls=Commands,
    name="quantkv",
    help="Quantized KV caches: the bytes they hold, the speed they have, the quality they cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.command()(check)
app.command()(compare)
app.command("import")(import_rows)
app.command()(inspect)
app.command("lm-eval", context_settings=SETTINGS)(lm_eval)
app.command()(paper)
app.command()(plan)
app.command()(results)
app.command()(watch)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="the sweep's YAML file")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override a setting, as in --set 'contexts=[512,1024]'"),
]


@app.command()
def sweep(
    config: ConfigFile,
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="results folder, instead of run.out")] = None,
    executor: Annotated[
        str | None, typer.Option(help="local, ray or slurm, instead of run.executor; see docs/cluster.md")
    ] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="only this share of the grid")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the grid and stop")] = False,
) -> None:
    """Measure every cell of a sweep that has no result yet, then write the report."""
    from rich.console import Console

    from quantkv.sweep.config import load_config

    console = Console()
    options = {"out": out, "executor": executor, "shard": shard}
    named = [f"run.{name}={json.dumps(str(value))}" for name, value in options.items() if value is not None]
    given = [*(overrides or []), *named]
    settings = load_config(config, given)
    if dry_run:
        from quantkv.commands.dry_run import print_grid

        print_grid(settings, console)
        return
    with console.status("starting"):
        from quantkv.sweep.runner import run_sweep
    summary = run_sweep(settings, console=console)
    rows = [] if summary.interrupted else summary.rows()
    place = Path(settings.run.out) / "report"
    unwritten = _print_report(rows, Path(settings.run.out), place, settings.report, console) if rows else []
    _print_summary(summary, console)
    _end_with(unwritten)
    raise typer.Exit(summary.exit_code)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="a folder of results")],
    out: Annotated[Path | None, typer.Option(help="where to write; default FOLDER/report")] = None,
    html: Annotated[bool, typer.Option(help="also write report.html, one page with everything in it")] = True,
) -> None:
    """Write tables, figures and a page from the results in a folder."""
    from rich.console import Console

    from quantkv.sweep.config import Report
    from quantkv.sweep.results import read_rows

    problems: list[str] = []
    rows = read_rows(folder, warn=problems.append)
    if rows:
        problems += _print_report(rows, folder, out or folder / "report", Report(html=html), Console())
    _end_with(problems)
    if not rows:
        raise QuantKVError(f"no results in {folder}: it holds no <kind>-<format>-c<context>-….json")


@app.command()
def formats() -> None:
    """List the named formats: their short string, size, and which tokens stay exact."""
    from rich.console import Console

    from quantkv.sweep.describe import formats_table

    print_wide(formats_table(), Console())


@app.command()
def describe(
    model: Annotated[str, typer.Argument(help="a model: built-in name, hub id, folder or .gguf file")],
    format: Annotated[str, typer.Option("--format", "-f", help="a preset or short string")],
    context: Annotated[int, typer.Option(min=1, help="cached tokens")] = 2048,
) -> None:
    """Show, layer by layer, what a format does to a model's cache and the bytes it will hold."""
    from rich.console import Console

    from quantkv.sweep.describe import cache_description

    console = Console()
    for part in cache_description(model, format, context):
        print_wide(part, console)


def _print_report(rows: list[dict], folder: Path, out: Path, chosen: Report, console: Console) -> list[str]:
    """The numbers, then the files; returns a line for each file that could not be written."""
    from quantkv.report.extras import inspections_in
    from quantkv.report.terminal import terminal_table
    from quantkv.report.write import write_report

    def tell(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    terminal_table(rows, console)
    problems: list[str] = []
    options = chosen.model_dump() | {"inspections": inspections_in(folder), "tell": tell}
    for path in write_report(rows, out, **options, warn=problems.append):
        tell(f"  {path}")
    return problems


def _end_with(problems: list[str]) -> None:
    """Exit code 2 and a line for each; called last, after everything that can be done is done."""
    if problems:
        raise QuantKVError("\n".join(problems))


def _print_summary(summary: Summary, console: Console) -> None:
    counts = summary.counts
    parts = [f"{counts['ok']} cells measured", f"{summary.finished_before} were finished before"]
    parts += [f"{counts[status]} {status}" for status in ("failed", "skipped") if counts[status]]
    parts += [f"{summary.elsewhere} dealt with by other workers"] if summary.elsewhere else []
    console.print(f"{', '.join(parts)}; results in {summary.out}", highlight=False, soft_wrap=True)
    if summary.interrupted:
        console.print(
            f"stopped with {summary.unfinished} cells to go; the same command goes on from here",
            highlight=False,
            soft_wrap=True,
        )
    elif summary.exit_code:
        console.print("failed cells run again with the same command", highlight=False)


if __name__ == "__main__":
    app()
