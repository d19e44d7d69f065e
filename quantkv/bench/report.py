"""What a benchmark gives back: one dictionary that JSON can hold, rows and all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np

from quantkv.bench.machine import MachineLimits, Probe, description
from quantkv.bench.rounds import Arm
from quantkv.bench.settings import Settings
from quantkv.instruments.statistics import Numbers, ratios, spread

Report = dict[str, Any]
Row = dict[str, Any]
SCHEMA = 1
FEW_ROUNDS = 10


def timed_row(arm: Arm) -> Row:
    """The row of an arm that ran: times in ms, bytes and multiply-adds."""
    rounds = [1000 * s for s in arm.seconds]
    return {
        "name": arm.name,
        **arm.about,
        "threads": arm.threads,
        "rounds_ms": rounds,
        "ms": spread(rounds),
        "bytes": arm.touched,
        "multiply_adds": arm.multiply_adds,
        "gb_s": arm.touched / float(np.median(rounds)) / 1e6,
    }


def faster(arm: Arm, other: Arm | None) -> Numbers | None:
    """How many times faster an arm is than another; None where there is no other."""
    return None if other is None else ratios(other.seconds, arm.seconds)


def make_report(
    benchmark: str, settings: Settings, probe: Probe, rows: list[Row], flags: Sequence[str], **more: list[Row]
) -> Report:
    """Settings, machine, its limits now, rows held against them, and what spoils a claim."""
    limits = probe.limits()
    few = [f"only {settings.rounds} rounds"] if settings.rounds < FEW_ROUNDS else []
    for row in chain(rows, *more.values()):
        if "ms" in row:
            add_limit(row, limits, settings.threads)
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "settings": json.loads(json.dumps(asdict(settings))),
        "machine": description(settings.threads),
        "limits": limits.as_dict(probe.buffer.nbytes),
        "flags": [*limits.flags, *few, *flags],
        "rows": rows,
        **more,
    }


def add_limit(row: Row, limits: MachineLimits, threads: int) -> None:
    """The least time this machine needs for a row's bytes and multiply-adds, and how far the row is away."""
    seconds = limits.seconds(row["bytes"], row["multiply_adds"], row.get("threads", threads))
    row["limit_ms"], row["k"] = 1000 * seconds, row["ms"]["median"] / (1000 * seconds) if seconds else None


def as_json(report: Report) -> str:
    return json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
