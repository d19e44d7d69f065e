"""Figures of what is inside a cache: magnitudes of channels, errors by layer and head, predicted damage.

Magnitudes are drawn token × channel as papers on outlier channels do, as heat maps: a surface hides what lies
behind its peaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from quantkv.drawing.figure import blank
from quantkv.drawing.legend import Legend, place_legends
from quantkv.drawing.style import MAGNITUDES, RC, styles_for
from quantkv.drawing.text import drawn

if TYPE_CHECKING:
    import pandas as pd

    from quantkv.measurements.inside.inspection import Inspection

TENSORS = {"key": "keys", "value": "values"}
ERRORS = {"key_error": "keys", "value_error": "values", "output_error": "attention output"}
HEAT: dict[str, Any] = {"aspect": "auto", "cmap": MAGNITUDES, "interpolation": "nearest"}
MOST_TICKS = 8
ROW_HEIGHT, SMALL_ROW, TITLE_LINE = 1.5, 1.0, 0.13
TITLE_POINTS = 125.0


def channel_figure(inspection: Inspection, layers: Sequence[int]) -> Figure:
    """Magnitudes, token × channel, keys left and values right, a row per layer; heads side by side."""
    with matplotlib.rc_context(RC):
        figure = blank("two-column", len(layers) * ROW_HEIGHT)
        axes = figure.subplots(len(layers), len(TENSORS), squeeze=False)
        for row, layer in zip(axes, layers):
            for ax, (tensor, name) in zip(row, TENSORS.items()):
                _draw_map(figure, ax, inspection, layer, tensor)
                ax.set_title(f"layer {layer}, {name}")
        for ax in axes[-1]:
            ax.set_xlabel("channel, ticks at heads")
        for ax in axes[:, 0]:
            ax.set_ylabel("token")
    return figure


def _draw_map(figure: Figure, ax: Any, inspection: Inspection, layer: int, tensor: str) -> None:
    values = inspection.maps[layer, tensor]
    tokens, channels = inspection.context + inspection.queries, values.shape[1]
    picture = ax.imshow(values, extent=(0, channels, tokens, 0), vmin=0, **HEAT)
    heads = len(inspection.statistics.query("layer == @layer and tensor == @tensor"))
    ax.set_xticks(range(0, channels + 1, channels // heads * -(-heads // MOST_TICKS)))
    ax.grid(False)
    figure.colorbar(picture, ax=ax, pad=0.02)


def error_figure(errors: pd.DataFrame) -> Figure:
    """Relative RMS errors, layer × head: a row per format, and keys, values, attention output. One colour
    scale."""
    formats = list(dict.fromkeys(errors["format"]))
    places = list(itertools.product(formats, ERRORS))
    titles = {(f, name): drawn(f"{f}: {ERRORS[name]}", TITLE_POINTS) for f, name in places}
    grids = {(f, name): _grid(errors[errors["format"] == f], name) for f, name in places}
    norm = _log_norm(np.concatenate([grid.ravel() for grid in grids.values()]))
    more = sum(max(titles[label, name].count("\n") for name in ERRORS) for label in formats)
    with matplotlib.rc_context(RC):
        figure = blank("two-column", 0.4 + len(formats) * SMALL_ROW + more * TITLE_LINE)
        axes = figure.subplots(len(formats), len(ERRORS), squeeze=False)
        for place, ax in zip(places, axes.ravel()):
            picture = ax.imshow(grids[place], norm=norm, **HEAT)
            ax.set_title(titles[place])
            ax.grid(False)
            ax.yaxis.get_major_locator().set_params(integer=True)
        for ax in axes[-1]:
            ax.set_xlabel("layer")
        for ax in axes[:, 0]:
            ax.set_ylabel("KV head")
        figure.colorbar(picture, ax=axes, pad=0.01, label="relative RMS error")
    return figure


def _grid(errors: pd.DataFrame, name: str) -> np.ndarray:
    """`[heads, layers]`, with NaN for layers that the format leaves exact."""
    table = errors.pivot(index="head", columns="layer", values=name)
    return table.reindex(columns=range(int(table.columns.max()) + 1)).to_numpy()


def _log_norm(values: np.ndarray) -> LogNorm:
    positive = values[np.isfinite(values) & (values > 0)]
    return LogNorm(positive.min(), positive.max()) if len(positive) else LogNorm(1e-3, 1.0)


def damage_figure(table: pd.DataFrame) -> Figure:
    """Measured mean KL over predicted damage, a point per format."""
    measured = table.dropna()
    with matplotlib.rc_context(RC):
        figure = blank("one-column", 2.4)
        ax = figure.subplots()
        styles, legend = styles_for(measured.index), Legend()
        for label, style in styles.items():
            point = measured.loc[label]
            options: dict[str, Any] = {"color": style.color, "marker": style.marker, "markersize": style.size}
            ax.plot(point["predicted"], point["kl_mean"], linestyle="none", label=label, **options)
            legend.format(label, style, linked=False)
        ax.set(xscale="log", yscale="log", xlabel="predicted damage", ylabel="mean KL (nats per token)")
        place_legends(figure, legend, styles)
    return figure
