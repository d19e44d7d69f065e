"""What a benchmark gives back: one dictionary that JSON can hold, and where it is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quantkv.bench.machine import MachineLimits, Probe, description
from quantkv.errors import QuantKVError
from quantkv.spec.specs import CacheSpec, parse_spec

SCHEMA = 1
FEW_ROUNDS = 10


def make_report(
    benchmark: str,
    settings: Any,
    probe: Probe,
    limits: MachineLimits,
    rows: list[dict[str, Any]],
    flags: Sequence[str],
    **more: Any,
) -> dict[str, Any]:
    """Settings (a dataclass), machine, limits, rows and what spoils a claim."""
    few = [f"only {settings.rounds} rounds"] if settings.rounds < FEW_ROUNDS else []
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


def parse_formats(texts: Sequence[str]) -> dict[str, CacheSpec]:
    """Specs by the text they were given as; a wrong one raises QuantKVError naming the legal names."""
    if not texts:
        raise QuantKVError("--formats names no format")
    return {text: parse_spec(text) for text in texts}


def check_writable(path: Path | None) -> None:
    """Raise now rather than after the measurement where the report could not be written."""
    if path is None or str(path) == "-":
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise QuantKVError(f"cannot write {path}: {error.strerror}") from error


def as_json(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
