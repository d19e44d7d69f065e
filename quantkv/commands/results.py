"""`quantkv results` and `import`: what a folder holds, whether it is whole, and what comes and goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.commands.arguments import Json, Results, print_json
from quantkv.errors import QuantKVError
from quantkv.rows.kinds import BUILT_IN, names
from quantkv.rows.row import STATUSES
from quantkv.wording.escapes import one_line
from quantkv.wording.streams import new_console, print_wide

if TYPE_CHECKING:
    from rich.table import Table

    from quantkv.rows.upkeep import Stored

Words = list[str] | None


def results(
    folder: Results,
    kind: Annotated[
        Words, typer.Option(help=f"{', '.join(BUILT_IN)}, or one of your own; repeatable, as all filters")
    ] = None,
    format: Annotated[Words, typer.Option("--format", "-f", help="a format as asked, or its spec")] = None,
    model: Annotated[Words, typer.Option(help="a model")] = None,
    status: Annotated[Words, typer.Option(help=", ".join(STATUSES))] = None,
    context: Annotated[list[int] | None, typer.Option(help="cached tokens")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="say which rows older metrics or codecs made")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --prune: delete them")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="check every file; 3 where one is wrong")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON and nothing else")] = False,
) -> None:
    """List the rows of a folder, verify them, or prune those that newer versions would measure again."""
    from quantkv.rows.upkeep import problems, stored

    if prune and verify:
        raise QuantKVError("give --prune or --verify, not both")
    if yes and not prune:
        raise QuantKVError("--yes has no effect without --prune")
    filters = {"kind": kind, "format": format, "model": model, "status": status, "context": context}
    _check(filters)
    if verify:
        _check_unfiltered(filters)
        found = list(problems(folder))
        _say_lines(found or ["every file is as a sweep writes it"], found, as_json)
        raise typer.Exit(3 if found else 0)
    chosen = [entry for entry in stored(folder) if _passes(entry.row, filters)]
    if prune:
        _prune(chosen, yes, as_json)
    else:
        _list(chosen, as_json)


def _check(filters: dict[str, Any]) -> None:
    for name, legal in (("kind", names()), ("status", STATUSES)):
        wrong = next((value for value in filters[name] or () if value not in legal), None)
        if wrong is not None:
            raise QuantKVError(f"--{name}: '{wrong}' is not one of {', '.join(legal)}")


def _check_unfiltered(filters: dict[str, Any]) -> None:
    given = [f"--{name}" for name, values in filters.items() if values]
    if given:
        raise QuantKVError(f"--verify checks every file of the folder: {', '.join(given)} has no effect")


def _passes(row: dict[str, Any], filters: dict[str, Any]) -> bool:
    asked = row["requested"]
    values = {name: {asked.get(name)} for name in ("model", "context")}
    values |= {name: {row[name]} for name in ("kind", "status")}
    values["format"] = {asked.get("format"), asked.get("spec")}
    return all(not wanted or values[name] & set(wanted) for name, wanted in filters.items())


def _list(chosen: list[Stored], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([entry.row for entry in chosen], indent=1))
        return
    if chosen:
        print_wide(_table(chosen), new_console())
    counts = {status: sum(entry.row["status"] == status for entry in chosen) for status in STATUSES}
    typer.echo(", ".join([f"{len(chosen)} rows", *(f"{n} {status}" for status, n in counts.items() if n)]))
    for line in _checkpoints(chosen):
        typer.echo(one_line(line))


def _checkpoints(chosen: list[Stored]) -> Iterator[str]:
    """A line for every model of which there are rows on several weights."""
    found: dict[tuple[str, str], set[str]] = {}
    for entry in chosen:
        asked, weights = entry.row["requested"], (entry.row.get("provenance") or {}).get("fingerprint")
        found.setdefault((asked.get("model"), asked.get("dtype")), set()).update([weights] if weights else [])
    for (model, dtype), weights in found.items():
        if len(weights) > 1:
            names = ", ".join(sorted(name[:12] for name in weights))
            count = f"rows of {len(weights)} checkpoints of this name"
            yield f"{model} ({dtype}): {count}, with fingerprints {names}"


def _table(chosen: list[Stored]) -> Table:
    from rich.table import Table

    from quantkv.wording.parts import asked_of, differing, short

    more = [name for name in differing(entry.row for entry in chosen) if name != "model"]
    names = ("kind", "model", *more, "format", "context", "batch", "status", "measured", "reason")
    table = Table(*names, box=None, pad_edge=False)
    for entry in chosen:
        row, made = entry.row, entry.row.get("provenance") or {}
        found = row["requested"] | {name: short(value) for name, value in asked_of(row).items()}
        found |= {"kind": row["kind"], "status": row["status"]}
        found |= {"measured": made.get("started"), "reason": row.get("reason")}
        table.add_row(*("" if found.get(name) is None else one_line(str(found[name])) for name in names))
    return table


def _prune(chosen: list[Stored], yes: bool, as_json: bool) -> None:
    from quantkv.rows.upkeep import older, outdated

    other = [(entry, words) for entry in chosen if (words := outdated(entry.row)) is not None]
    old = [(entry, words) for entry, words in other if older(entry.row)]
    if yes:
        for entry, _ in old:
            entry.delete()
    lines = [f"{entry.path.name}: {words}" for entry, words in old]
    hint = "" if yes or not old else "; --yes deletes them"
    end = f"{len(old)} rows of older versions{' deleted' if yes else ''}{hint}"
    _say_lines([*lines, end], [entry.path.name for entry, _ in old], as_json)


def _say_lines(lines: list[str], values: list[str], as_json: bool) -> None:
    for line in [json.dumps(values, indent=1)] if as_json else lines:
        typer.echo(line)


def import_rows(
    file: Annotated[Path, typer.Argument(help="a .csv, .json or .yaml file with model, format, context, …")],
    source: Annotated[
        str | None, typer.Option(help="where the numbers are from, such as 'KIVI, table 3'")
    ] = None,
    out: Annotated[Path, typer.Option(help="the results folder")] = Path("results/sweep"),
    as_json: Json = False,
) -> None:
    """Import numbers that others measured; reports show them apart and never rank them."""
    from quantkv.rows.published import import_file

    written = import_file(file, out, source)
    if as_json:
        rows = [json.loads(path.read_text(encoding="utf-8")) for path in written]
        print_json({"rows": rows, "files": [str(path) for path in written]})
    else:
        typer.echo(f"{len(written)} rows imported into {out}")
