"""Needles as a heat map: a panel per task and format, depth against length, the share of right answers.

The exact cache has the first panel of each task: where it does no better than chance, no format can be
blamed, and the length is hatched in every panel.
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
from quantkv.report.numbers import tokens
from quantkv.report.style import RC, WIDTHS

REFERENCE = "exact cache"
COLOURS = "cividis"
PANEL_HEIGHT = 0.95
Cells = dict[tuple[int, float], tuple[int, int, bool]]
"""Hits and questions by length and depth, and whether anything can be concluded at that length."""


def needle_figure(group: Group, *, width: str = "two-column") -> Figure:
    """All tasks below each other, the exact cache and the formats beside each other."""
    parts, columns = group.parts, [REFERENCE, *group.formats]
    with matplotlib.rc_context(RC | {"axes.grid": False}):
        size = (WIDTHS[width], PANEL_HEIGHT * len(parts) + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(parts), len(columns), squeeze=False)
        for row, part in enumerate(parts):
            for column, name in enumerate(columns):
                image = _panel(axes[row, column], _cells(group.rows, part, name))
                axes[row, column].set_title(name if row == 0 else "")
            axes[row, 0].set_ylabel(f"{part}\ndepth")
        figure.colorbar(image, ax=axes, label="right answers", fraction=0.02, ticks=[0, 0.5, 1])
        figure.supxlabel(
            "length of the context (tokens); hatched: the exact cache does no better than chance"
        )
    return figure


def _cells(rows: Sequence[Row], part: str, name: str) -> Cells:
    """Counts of one panel, summed over seeds; the exact cache's stand in the rows of every format."""
    exact = name == REFERENCE
    found: Cells = {}
    own = [row for row in rows if part_of(row) == part and row["status"] == "ok"]
    own = [row for row in own if exact or row["requested"]["format"] == name]
    for row in {(row["requested"]["context"], row["requested"]["seed"]): row for row in own}.values():
        for entry in row["retrieval"]["depths"]:
            place = row["requested"]["context"], entry["depth"]
            hits, n, _ = found.get(place, (0, 0, True))
            more = entry["hits_ref" if exact else "hits"]
            found[place] = hits + more, n + entry["n"], row["retrieval"]["conclusive"]
    return found


def _panel(ax: Axes, cells: Cells) -> Any:
    lengths, depths = (sorted({place[i] for place in cells}) for i in (0, 1))
    shares = np.full((len(depths) or 1, len(lengths) or 1), np.nan)
    for (length, depth), (hits, n, conclusive) in cells.items():
        row, column = depths.index(depth), lengths.index(length)
        shares[row, column] = hits / n
        if not conclusive:
            look: dict[str, Any] = {"fill": False, "hatch": "////", "linewidth": 0, "edgecolor": "#FFFFFF"}
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
    ax.set_xticks(range(len(lengths)), [tokens(int(length)) for length in lengths])
    ax.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    return ax.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
