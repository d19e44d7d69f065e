"""The ``quantkv`` command. What costs time to import is imported by the command that needs it."""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from quantkv.bench.cli import app as bench
from quantkv.commands.check import check
from quantkv.commands.compare import compare
from quantkv.commands.describe import describe
from quantkv.commands.exits import epilog
from quantkv.commands.formats import formats
from quantkv.commands.import_rows import import_rows
from quantkv.commands.inspect import inspect
from quantkv.commands.lm_eval import SETTINGS, lm_eval
from quantkv.commands.paper import paper
from quantkv.commands.plan import plan
from quantkv.commands.report import report
from quantkv.commands.results import results
from quantkv.commands.sweep import sweep
from quantkv.commands.version import options
from quantkv.commands.watch import watch
from quantkv.errors import QuantKVError


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
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.callback()(options)
app.add_typer(bench, name="bench")
app.command()(check)
app.command()(compare)
app.command()(describe)
app.command()(formats)
app.command("import")(import_rows)
app.command()(inspect)
app.command("lm-eval", context_settings=SETTINGS)(lm_eval)
app.command()(paper)
app.command()(plan)
app.command()(report)
app.command()(results)
app.command()(sweep)
app.command()(watch)


if __name__ == "__main__":
    app()
