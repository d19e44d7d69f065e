"""A report as a table for the terminal or in Markdown; both show the same cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from quantkv.wording.numbers import DASH, compact, percent, significant
from quantkv.wording.streams import print_line, print_wide

Row = dict[str, Any]
Text = Callable[[Row], str]


def _median(name: str) -> Text:
    return lambda row: significant((row.get(name) or {}).get("median"))


def _number(name: str, unit: float = 1) -> Text:
    return lambda row: DASH if row.get(name) is None else compact(row[name] / unit, 3)


def _text(name: str) -> Text:
    return lambda row: str(row.get(name) or DASH)


def _times(row: Row) -> str:
    """Median, and the 10th and 90th percentile behind it."""
    ms = row.get("ms") or {}
    if ms.get("median") is None:
        return row.get("reason") or DASH
    return f"{significant(ms['median'])} ({significant(ms['p10'])} to {significant(ms['p90'])})"


MS = "ms (p10 to p90)"
COLUMNS: dict[str, Text] = {
    **{name: _text(name) for name in ("tokens", "context", "format", "tensor", "case", "encoder")},
    "prefill": _text("tokens"),
    "arm": _text("name"),
    "cache": _text("name"),
    MS: _times,
    "ms/token (p10 to p90)": _times,
    "× baseline": _median("faster_than_baseline"),
    "× folded": _median("faster_than_folded"),
    "× decode, sdpa": _median("faster_than_decode"),
    "2 threads ×": _median("faster_with_more_threads"),
    "× dynamic": _median("faster_than_dynamic"),
    "× torch": _median("faster_than_torch"),
    "time / dynamic's": _median("time_to_dynamic"),
    "time / plain's": _median("time_to_plain"),
    "growth ms": _number("growth_ms"),
    "growth / dynamic's": _number("growth_to_dynamic"),
    "update": lambda row: f"{percent(row['update']['share'])} %" if row.get("update") else DASH,
    "scratch MB": _number("scratch_bytes", 1e6),
    "MB": _number("bytes", 1e6),
    "GB/s": _number("gb_s"),
    "limit ms": _number("limit_ms"),
    "k": _number("k"),
}
LEFT = ("arm", "cache", "format", "tensor", "case", "encoder")
"""Columns of names; the others hold numbers and stand at the right."""
LIMIT = ("MB", "limit ms", "k")
GROWTH = ("growth ms", "growth / dynamic's")
RATIOS = ("× baseline", "× folded", "× decode, sdpa", "2 threads ×")
TABLES: dict[str, tuple[str, ...]] = {
    "attention": ("tokens", "arm", MS, *RATIOS, "MB", "GB/s", "limit ms", "k"),
    "decode": ("context", "cache", "ms/token (p10 to p90)", "× dynamic", *GROWTH, "update", *LIMIT),
    "prefill": ("prefill", "cache", MS, "time / dynamic's", *LIMIT),
    "encode": ("format", "tensor", "case", "tokens", "encoder", MS, "GB/s", "× torch", *LIMIT),
    "simulate": ("tokens", "arm", MS, "time / plain's", "scratch MB", *LIMIT),
}


def tables(report: Row) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """The tables of a report: titles of columns and rows. Attention by other counts of threads has a column
    and no row."""
    kind, rows = report["benchmark"], report["rows"]
    if kind == "attention":
        rows = [row for row in rows if row["threads"] == report["settings"]["threads"]]
    yield TABLES[kind], rows
    if report.get("prefill"):
        yield TABLES["prefill"], report["prefill"]


def header(report: Row) -> str:
    """The machine and its limits, in one line each."""
    machine, limits = report["machine"], report["limits"]
    before, after = limits["read_gb_s_before"], limits["read_gb_s_after"]
    read = "; ".join(f"{significant(before[n])} / {significant(after[n])} GB/s with {n}" for n in before)
    peak = f"{significant(limits['peak_gmadd_s_before'])} / {significant(limits['peak_gmadd_s_after'])}"
    where, isa = machine["machine"], machine["isa"] or "none (no native engine)"
    return (
        f"{where['cpu']}, {where['cores']} core{'' if where['cores'] == 1 else 's'}; "
        f"{machine['threads']} thread(s), instruction set {isa}; "
        f"torch {machine['torch']}, quantkv {machine['quantkv']}\n"
        f"reads, before / after: {read} thread(s); peak {peak} · 10⁹ multiply-adds/s of one thread"
    )


def markdown(report: Row) -> str:
    """The report as Markdown."""
    parts = [header(report).replace("\n", "  \n")]
    for columns, rows in tables(report):
        lines = [columns, [":--" if name in LEFT else "--:" for name in columns]]
        lines += [[COLUMNS[name](row).replace("|", r"\|") for name in columns] for row in rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*parts, "\n".join(f"- {flag}" for flag in report["flags"])]).rstrip() + "\n"


def print_report(report: Row, console: Console) -> None:
    """The report on a terminal, never squeezed: a cut name would name nothing."""
    print_line(header(report), console)
    for columns, rows in tables(report):
        print_wide(_rich(columns, rows), console)
    for flag in report["flags"]:
        print_line(flag, console, "yellow")


def _rich(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """A line is left out between the lengths of a benchmark."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    for _, block in groupby(rows, lambda row: "encoder" in row or row.get("context") or row.get("tokens")):
        if table.rows:
            table.add_row()
        for row in block:
            table.add_row(*(COLUMNS[name](row) for name in columns))
    return table
