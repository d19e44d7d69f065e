"""A report as a table for the terminal or in Markdown; both show the same cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from quantkv.wording.numbers import DASH, compact, percent, significant
from quantkv.wording.streams import print_line, print_wide

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def _median(name: str) -> Callable[[Row], str]:
    return lambda row: significant((row.get(name) or {}).get("median"))


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: compact(row.get(name), 3)


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(name) or DASH)


def _times(row: Row) -> str:
    """Median, and the 10th and 90th percentile behind it."""
    ms = row.get("ms") or {}
    if ms.get("median") is None:
        return row.get("reason") or DASH
    return f"{significant(ms['median'])} ({significant(ms['p10'])} to {significant(ms['p90'])})"


def _megabytes(row: Row) -> str:
    return compact(row["bytes"] / 1e6, 3) if row.get("bytes") else DASH


def _scratch(row: Row) -> str:
    return DASH if row["scratch_bytes"] is None else compact(row["scratch_bytes"] / 1e6, 3)


def _update_share(row: Row) -> str:
    update = row.get("update")
    return f"{percent(update['share'])} %" if update else DASH


MS: Column = ("ms (p10 to p90)", _times)
LIMIT: list[Column] = [("MB", _megabytes), ("limit ms", _number("limit_ms")), ("k", _number("k"))]
ATTENTION: list[Column] = [
    ("tokens", _text("tokens")),
    ("arm", _text("name")),
    MS,
    ("× baseline", _median("faster_than_baseline")),
    ("× folded", _median("faster_than_folded")),
    ("× decode, sdpa", _median("faster_than_decode")),
    ("2 threads ×", _median("faster_with_more_threads")),
    ("MB", _megabytes),
    ("GB/s", _number("gb_s")),
    ("limit ms", _number("limit_ms")),
    ("k", _number("k")),
]
DECODE: list[Column] = [
    ("context", _text("context")),
    ("cache", _text("name")),
    ("ms/token (p10 to p90)", _times),
    ("× dynamic", _median("faster_than_dynamic")),
    ("growth ms", _number("growth_ms")),
    ("growth / dynamic's", _number("growth_to_dynamic")),
    ("update", _update_share),
    *LIMIT,
]
PREFILL: list[Column] = [
    ("prefill", _text("tokens")),
    ("cache", _text("name")),
    MS,
    ("time / dynamic's", _median("time_to_dynamic")),
    *LIMIT,
]
ENCODE: list[Column] = [
    ("format", _text("format")),
    ("tensor", _text("tensor")),
    ("case", _text("case")),
    ("tokens", _text("tokens")),
    ("encoder", _text("encoder")),
    MS,
    ("GB/s", _number("gb_s")),
    ("× torch", _median("faster_than_torch")),
    *LIMIT,
]
SIMULATE: list[Column] = [
    ("tokens", _text("tokens")),
    ("arm", _text("name")),
    MS,
    ("time / plain's", _median("time_to_plain")),
    ("scratch MB", _scratch),
    *LIMIT,
]
NAMES = ("arm", "cache", "format", "tensor", "case", "encoder")


def tables(report: Row) -> list[tuple[list[Column], list[Row]]]:
    """The tables of a report: columns and rows."""
    rows = report["rows"]
    if report["benchmark"] == "attention":
        return [(ATTENTION, [row for row in rows if row["threads"] == report["settings"]["threads"]])]
    if report["benchmark"] == "decode":
        prefill = report["prefill"]
        return [(DECODE, rows)] + ([(PREFILL, prefill)] if prefill else [])
    return [(SIMULATE if report["benchmark"] == "simulate" else ENCODE, rows)]


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
        lines = [[name for name, _ in columns], [":--" if name in NAMES else "--:" for name, _ in columns]]
        lines += [[text(row).replace("|", r"\|") for _, text in columns] for row in rows]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(parts + ["\n".join(f"- {flag}" for flag in report["flags"])]).rstrip() + "\n"


def print_report(report: Row, console: Console) -> None:
    """The report on a terminal, never squeezed: a cut name would name nothing."""
    print_line(header(report), console)
    for columns, rows in tables(report):
        print_wide(_rich(columns, rows), console)
    for flag in report["flags"]:
        print_line(flag, console, "yellow")


def _rich(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, _ in columns:
        table.add_column(name, justify="left" if name in NAMES else "right", no_wrap=True)
    previous = None
    for row in rows:
        where = row.get("context") or row.get("tokens")
        if previous is not None and previous != where and "encoder" not in row:
            table.add_row()
        previous = where
        table.add_row(*(text(row) for _, text in columns))
    return table
