"""Needles as a heat map: a panel per task and format, depth against length, the share of right answers.

The exact cache has the first panel of each task: where it does no better than chance, no format can be
blamed, and the length is hatched in every panel. Panels that do not fit beside each other go on below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from quantkv.report.behaviour.groups import Group, Row, part_of
from quantkv.report.style import RC, SHARES, WIDTHS, broken

REFERENCE = "exact cache"
PANEL_HEIGHT, AROUND = 1.15, 0.5
MOST_COLUMNS = 5
MOST_LENGTHS = 5
LENGTHS, HATCHED = "context (tokens)", "hatched: the exact cache does no better than chance"
Cells = dict[tuple[int, float], tuple[int, int, bool]]
"""Hits and questions by length and depth, and whether anything can be concluded at that length."""


def needle_figure(group: Group) -> Figure:
    """A block of panels per task: the exact cache, then the formats. As wide as a page."""
    names = [REFERENCE, *group.formats]
    columns = min(len(names), MOST_COLUMNS)
    lines = -(-len(names) // columns)
    with matplotlib.rc_context(RC | {"axes.grid": False}):
        size = (WIDTHS["two-column"], PANEL_HEIGHT * lines * len(group.parts) + AROUND)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(lines * len(group.parts), columns, squeeze=False)
        for block, part in zip(np.split(grid, len(group.parts)), group.parts):
            image = _block(block, group, part, names)
        figure.colorbar(image, ax=figure.axes, label="right answers", fraction=0.02, ticks=[0, 0.5, 1])
        said = [LENGTHS] + [HATCHED] * any(
            not row["retrieval"]["conclusive"] for row in _measured(group.rows)
        )
        figure.supxlabel("; ".join(said), fontsize=RC["axes.labelsize"])
    return figure


def _block(axes: np.ndarray, group: Group, part: str, names: Sequence[str]) -> Any:
    """The panels of one task; only the outer ones carry the labels of the axes."""
    cells = [_cells(group.rows, part, name) for name in names]
    lengths, depths = (sorted({place[i] for own in cells for place in own}) for i in (0, 1))
    columns = axes.shape[1]
    for index, (ax, name, own) in enumerate(zip(axes.ravel(), names, cells)):
        image = _panel(ax, own, [int(length) for length in lengths], depths)
        ax.set_title(broken(name))
        ax.tick_params(labelleft=index % columns == 0, labelbottom=index + columns >= len(names))
    for ax in axes[:, 0]:
        ax.set_ylabel(f"{part}\ndepth")
    for ax in axes.ravel()[len(names) :]:
        ax.remove()
    return image


def _cells(rows: Sequence[Row], part: str, name: str) -> Cells:
    """Counts of one panel, summed over seeds; the exact cache's stand in the rows of every format."""
    exact = name == REFERENCE
    found: Cells = {}
    own = [row for row in _measured(rows) if part_of(row) == part]
    own = [row for row in own if exact or row["requested"]["format"] == name]
    for row in {(row["requested"]["context"], row["requested"]["seed"]): row for row in own}.values():
        for entry in row["retrieval"]["depths"]:
            place = row["requested"]["context"], entry["depth"]
            hits, n, _ = found.get(place, (0, 0, True))
            more = entry["hits_ref" if exact else "hits"]
            found[place] = hits + more, n + entry["n"], row["retrieval"]["conclusive"]
    return found


def _measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


def _panel(ax: Axes, cells: Cells, lengths: Sequence[int], depths: Sequence[float]) -> Any:
    shares = np.full((len(depths) or 1, len(lengths) or 1), np.nan)
    for (length, depth), (hits, n, conclusive) in cells.items():
        row, column = depths.index(depth), lengths.index(length)
        shares[row, column] = hits / n
        if not conclusive:
            look: dict[str, Any] = {"fill": False, "hatch": "////", "linewidth": 0, "edgecolor": "#FFFFFF"}
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
    every = max(1, -(-len(lengths) // MOST_LENGTHS))
    ax.set_xticks(range(0, len(lengths), every), [_short(length) for length in lengths[::every]])
    ax.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    return ax.imshow(shares, cmap=SHARES, vmin=0, vmax=1, aspect="auto")


def _short(length: int) -> str:
    """Panels are narrow: 2k for 2048."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
