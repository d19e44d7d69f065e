"""The files and the terminal table of an inspection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from quantkv.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from quantkv.measurements.inside.inspection import Inspection

ERRORS = ("key_error", "value_error", "logit_error", "output_error")
HEADERS = {"key_error": "keys", "value_error": "values", "logit_error": "logits", "output_error": "output"}
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
    from quantkv.measurements.inside.channel_figure import channel_figure, damage_figure, error_figure

    yield "magnitudes", channel_figure(inspection, layers)
    if len(inspection.errors):
        yield "errors", error_figure(inspection.errors)
    if len(damage.dropna()) >= FEWEST_POINTS:
        yield "damage", damage_figure(damage)


def error_table(errors: pd.DataFrame, damage: pd.DataFrame) -> Table:
    """A row per format: errors in the median layer and in the worst, predicted damage, measured KL."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("format", no_wrap=True)
    for name in ERRORS:
        table.add_column(f"{HEADERS[name]}\nmedian", justify="right", no_wrap=True)
    for header in ("output\nworst (layer)", "predicted\ndamage", "mean KL\nnats/token"):
        table.add_column(header, justify="right", no_wrap=True)
    for label, rows in errors.groupby("format", sort=False):
        layers = rows.groupby("layer")[list(ERRORS)].mean()
        worst = layers["output_error"].idxmax()
        cells = [f"{layers[name].median():.2g}" for name in ERRORS]
        cells.append(f"{layers['output_error'].max():.2g} ({worst})")
        predicted, kl = damage.loc[label, ["predicted", "kl_mean"]]
        table.add_row(Text(str(label)), *cells, f"{predicted:.2g}", "-" if kl != kl else f"{kl:.2g}")
    return table


def outlier_table(statistics: pd.DataFrame, count: int = 5) -> Table:
    """The layers with the hottest channels: the largest ratio to the median channel, and where it is."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("layer", "tensor", "hottest ÷ median", "head", "channel", "constant part", "kurtosis"):
        table.add_column(header, justify="left" if header == "tensor" else "right", no_wrap=True)
    hottest = statistics.loc[statistics.groupby(["layer", "tensor"])["outlier_ratio"].idxmax()]
    for row in hottest.nlargest(count, "outlier_ratio").itertuples():
        numbers = f"{row.outlier_ratio:.3g}", str(row.head), str(row.hot_channel)
        table.add_row(str(row.layer), row.tensor, *numbers, f"{row.hot_offset:.0%}", f"{row.kurtosis:.3g}")
    return table
