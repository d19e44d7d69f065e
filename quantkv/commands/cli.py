"""The ``quantkv`` command. What costs time to import is imported by the command that needs it."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from quantkv.commands.arguments import Imports, import_files
from quantkv.commands.bench import app as bench
from quantkv.commands.check import check
from quantkv.commands.compare import compare
from quantkv.commands.inspect import inspect
from quantkv.commands.lm_eval import SETTINGS, lm_eval
from quantkv.commands.paper import paper
from quantkv.commands.plan import describe, formats, plan
from quantkv.commands.report import report
from quantkv.commands.results import import_rows, results
from quantkv.commands.sweep import sweep
from quantkv.commands.watch import watch
from quantkv.errors import QuantKVError
from quantkv.version import __version__
from quantkv.wording.escapes import visible
from quantkv.wording.streams import READER_GONE, drop_output, prepare

EXITS = {
    0: "done; nothing got worse",
    2: "wrong input, said in a line for each thing, or a file that cannot be read or written",
    3: "some cells failed, or could not be measured",
    10: "check: caution",
    11: "check: unfit",
    12: "compare: a number got worse",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output went away, as with `| head`; a sweep goes on without it",
}
"""What a command ends with. The one list: `quantkv --help` shows it, docs/cli.md holds the same."""


class Commands(TyperGroup):
    """Turns the errors a user can cause into one line and exit code 2, whatever the terminal."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        prepare()
        try:
            return super().main(*arguments, **options)
        except (BrokenPipeError, SystemExit) as ending:
            # typer and rich end with 1 where the reader of a help text is gone
            if not any(isinstance(error, BrokenPipeError) for error in (ending, ending.__context__)):
                raise
            drop_output()
            raise SystemExit(READER_GONE) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Nothing means anything when it is empty: as a path it would be the working directory."""
        given = zip(["", *args], args)
        empty = next((name for before, arg in given if (name := _empty(before, arg))), None)
        if empty is not None and not ctx.resilient_parsing:
            raise typer.BadParameter(f"{empty} is empty", ctx=ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except QuantKVError as error:
            for line in str(error).splitlines():
                typer.echo(f"quantkv: {visible(line)}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("quantkv: interrupted", err=True)
            raise typer.Exit(130) from None


def _empty(before: str, argument: str) -> str | None:
    """The option that is given as nothing, or "an argument"; None where something is given."""
    if re.fullmatch(r"--[\w-]+=", argument):
        return argument.removesuffix("=")
    name = before if before.startswith("-") else "an argument"
    return None if argument else name


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quantkv {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="print the version and exit"),
    ] = False,
    imports: Imports = None,
) -> None:
    """Options of the command itself, `--version` and `--import FILE`."""
    import_files(imports)


# Idle OpenMP threads that spin make torch many times slower as soon as anything else runs on the machine.
# Read once, when torch is imported, and inherited by the processes of memory cells.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    cls=Commands,
    name="quantkv",
    help="Quantized KV caches: the bytes they hold, the speed they have, the quality they cost.",
    epilog="Exit codes: " + ". ".join(f"{code} {words}" for code, words in EXITS.items()) + ".",
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
