"""The files of an inspection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.files import write_whole
from quantkv.rows.row import strict_json

if TYPE_CHECKING:
    import pandas as pd

    from quantkv.measurements.inside.inspection import Inspection

FEWEST_POINTS = 2
"""A single format shows no relation of predicted to measured damage."""


def write_inspection(
    inspection: Inspection, damage: pd.DataFrame, facts: dict[str, Any], out: Path, layers: Sequence[int]
) -> list[Path]:
    """CSV tables, `inspection.json` (facts and damage) and figures; returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    frames = {name: getattr(inspection, name) for name in ("errors", "statistics", "channels")}
    tables = {f"{name}.csv": frame.to_csv(index=False).encode() for name, frame in frames.items()}
    told = strict_json(facts | {"damage": damage.reset_index().to_dict("records")})
    tables["inspection.json"] = json.dumps(told, indent=2).encode()
    paths = []
    for name, content in chain(tables.items(), _figures(inspection, damage, layers)):
        write_whole(out / name, content)
        paths.append(out / name)
    return paths


def _figures(
    inspection: Inspection, damage: pd.DataFrame, layers: Sequence[int]
) -> Iterator[tuple[str, bytes]]:
    from quantkv.drawing.figure import rendered
    from quantkv.measurements.inside.figures import channel_figure, damage_figure, error_figure

    figures = {"magnitudes": channel_figure(inspection, layers)}
    if len(inspection.errors):
        figures["errors"] = error_figure(inspection.errors)
    if len(damage.dropna()) >= FEWEST_POINTS:
        figures["damage"] = damage_figure(damage)
    for name, figure in figures.items():
        yield from ((f"{name}.{kind}", rendered(figure, kind)) for kind in ("png", "pdf"))
