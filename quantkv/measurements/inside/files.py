"""The files of an inspection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from quantkv.measurements.inside.inspection import Inspection

KINDS = ("png", "pdf")
FEWEST_POINTS = 2
"""A single format shows no relation of predicted to measured damage."""


def write_inspection(
    inspection: Inspection, damage: pd.DataFrame, facts: dict[str, Any], out: Path, layers: Sequence[int]
) -> list[Path]:
    """CSV tables, `inspection.json` (facts and damage) and figures; returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "errors": inspection.errors,
        "statistics": inspection.statistics,
        "channels": inspection.channels,
    }
    contents = {f"{name}.csv": frame.to_csv(index=False).encode() for name, frame in tables.items()}
    rows = damage.reset_index().astype(object).where(damage.reset_index().notna(), None).to_dict("records")
    contents["inspection.json"] = json.dumps(facts | {"damage": rows}, indent=2).encode()
    paths = []
    for name, content in contents.items():
        write_whole(out / name, content)
        paths.append(out / name)
    return paths + list(_write_figures(inspection, damage, out, layers))


def _write_figures(
    inspection: Inspection, damage: pd.DataFrame, out: Path, layers: Sequence[int]
) -> Iterator[Path]:
    from quantkv.drawing.figure import rendered

    for name, figure in _figures(inspection, damage, layers):
        for kind in KINDS:
            write_whole(out / f"{name}.{kind}", rendered(figure, kind))
            yield out / f"{name}.{kind}"


def _figures(
    inspection: Inspection, damage: pd.DataFrame, layers: Sequence[int]
) -> Iterator[tuple[str, Figure]]:
    from quantkv.measurements.inside.figures import channel_figure, damage_figure, error_figure

    yield "magnitudes", channel_figure(inspection, layers)
    if len(inspection.errors):
        yield "errors", error_figure(inspection.errors)
    if len(damage.dropna()) >= FEWEST_POINTS:
        yield "damage", damage_figure(damage)
