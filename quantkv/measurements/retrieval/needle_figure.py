"""Needles as a heat map of shares of right answers: a panel per task and format, depth against length.

Where there is one length, such panels would be bars: then a panel per task, format against depth, with the
shares in its cells. The exact cache comes first: where it does no better than chance, no format can be
blamed, and the length is hatched in every panel. Panels that do not fit beside each other go on below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from quantkv.drawing.figure import blank
from quantkv.drawing.style import RC, SHARES
from quantkv.drawing.text import NARROW, drawn
from quantkv.studies.groups import Group, Row, part_of

REFERENCE = "exact cache"
PANEL_HEIGHT, AROUND, LINE = 1.15, 0.5, 0.13
ROW_HEIGHT, AROUND_ROWS = 0.2, 0.75
MOST_COLUMNS, FEWER_COLUMNS, SHORT_TITLE = 5, 4, 66.0
MOST_BESIDE, FEWEST_ROWS, ROW_NAME = 3, 4, 150.0
DARK = 0.5
"""A share below it is a dark cell, on which words are white."""
MOST_LENGTHS = 5
HATCHED = "hatched: the exact cache does no better than chance"
Cell = tuple[int, int, bool]
"""Hits, questions, and whether anything can be concluded at that length."""
Cells = dict[tuple[int, float], Cell]
"""By length and depth."""


def needle_figure(group: Group) -> Figure:
    """The exact cache, then the formats, for each task. As wide as a page."""
    contexts = sorted({int(row["requested"]["context"]) for row in _measured(group.rows)})
    with matplotlib.rc_context(RC | {"axes.grid": False}):
        if len(contexts) == 1:
            figure, image, axis = (*_by_depth(group), f"depth at {contexts[0]} tokens of context")
        else:
            figure, image, axis = (*_by_length(group), "context (tokens)")
        figure.colorbar(image, ax=figure.axes, label="right answers", fraction=0.02, ticks=[0, 0.5, 1])
        inconclusive = any(not row["retrieval"]["conclusive"] for row in _measured(group.rows))
        figure.supxlabel("; ".join([axis] + [HATCHED] * inconclusive), fontsize=RC["axes.labelsize"])
    return figure


def _names(group: Group, points: float) -> tuple[dict[str, str], int]:
    """The panels or rows with their names as they are drawn, and the most lines that a name takes."""
    names = {name: drawn(name, points) for name in (REFERENCE, *group.formats)}
    return names, max(name.count("\n") + 1 for name in names.values())


def _by_length(group: Group) -> tuple[Figure, Any]:
    """A block of panels per task."""
    names, words = _names(group, SHORT_TITLE)
    if words > 1:
        names, words = _names(group, NARROW)
    columns = min(len(names), MOST_COLUMNS if words == 1 else FEWER_COLUMNS)
    lines = -(-len(names) // columns)
    height = (PANEL_HEIGHT + LINE * (words - 1)) * lines * len(group.parts) + AROUND
    figure = blank("two-column", height)
    grid = figure.subplots(lines * len(group.parts), columns, squeeze=False)
    for block, part in zip(np.split(grid, len(group.parts)), group.parts):
        image = _block(block, group, part, names)
    return figure, image


def _by_depth(group: Group) -> tuple[Figure, Any]:
    """A panel per task, a row per format, the shares in percent."""
    names, words = _names(group, ROW_NAME)
    columns = min(len(group.parts), MOST_BESIDE)
    lines = -(-len(group.parts) // columns)
    height = (ROW_HEIGHT + LINE * (words - 1)) * max(FEWEST_ROWS, len(names)) + AROUND_ROWS
    figure = blank("two-column", height * lines)
    grid = figure.subplots(lines, columns, squeeze=False, sharey="row")
    for ax, part in zip(grid.ravel(), group.parts):
        image = _task(ax, [_cells(group.rows, part, name) for name in names])
        ax.set_title(drawn(part))
        ax.set_yticks(range(len(names)), list(names.values()))
    for ax in grid.ravel()[len(group.parts) :]:
        ax.remove()
    return figure, image


def _task(ax: Axes, rows: Sequence[Cells]) -> Any:
    """A row per format, a column per depth."""
    depths = sorted({depth for cells in rows for _, depth in cells})
    numbered = [(row, *item) for row, cells in enumerate(rows) for item in cells.items()]
    places = {(row, depths.index(depth)): cell for row, (_, depth), cell in numbered}
    ax.set_xticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    _write(ax, places)
    return _shares(ax, places, (len(rows), len(depths)))


def _block(axes: np.ndarray, group: Group, part: str, names: Mapping[str, str]) -> Any:
    """The panels of one task; only the outer ones carry the labels of the axes."""
    cells = [_cells(group.rows, part, name) for name in names]
    lengths, depths = (sorted({place[i] for own in cells for place in own}) for i in (0, 1))
    columns = axes.shape[1]
    for index, (ax, name, own) in enumerate(zip(axes.ravel(), names, cells)):
        image = _panel(ax, own, [int(length) for length in lengths], depths)
        ax.set_title(names[name])
        ax.tick_params(labelleft=index % columns == 0, labelbottom=index + columns >= len(names))
    for ax in axes[:, 0]:
        ax.set_ylabel(f"{drawn(part)}\ndepth")
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
    places = {(depths.index(depth), lengths.index(length)): cell for (length, depth), cell in cells.items()}
    every = max(1, -(-len(lengths) // MOST_LENGTHS))
    ax.set_xticks(range(0, len(lengths), every), [_short(length) for length in lengths[::every]])
    ax.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    return _shares(ax, places, (len(depths), len(lengths)))


def _shares(ax: Axes, cells: Mapping[tuple[int, int], Cell], shape: tuple[int, int]) -> Any:
    """The picture of shares by row and column, empty where nothing was measured."""
    shares = np.full([max(1, count) for count in shape], np.nan)
    for (row, column), (hits, n, conclusive) in cells.items():
        shares[row, column] = hits / n
        if not conclusive:
            look: dict[str, Any] = {"fill": False, "hatch": "////", "linewidth": 0, "edgecolor": "#FFFFFF"}
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
    return ax.imshow(shares, cmap=SHARES, vmin=0, vmax=1, aspect="auto")


def _write(ax: Axes, cells: Mapping[tuple[int, int], Cell]) -> None:
    """The shares in percent, in their cells."""
    for (row, column), (hits, n, _) in cells.items():
        look: dict[str, Any] = {"ha": "center", "va": "center", "gid": f"share:{row},{column}"}
        ax.text(column, row, f"{100 * hits / n:.0f} %", color="white" if hits / n < DARK else "black", **look)


def _short(length: int) -> str:
    """Panels are narrow: 2k for 2048."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
