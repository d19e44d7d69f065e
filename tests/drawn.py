"""What a test reads back from a drawn figure."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from quantkv.studies.study import Study, studies


def only(rows: list[dict[str, Any]]) -> Study:
    (study,) = studies(rows)
    return study


def lines_of(ax: Axes, prefix: str = "format:") -> dict[str, Line2D]:
    return {
        str(line.get_gid()).removeprefix(prefix): line
        for line in ax.get_lines()
        if str(line.get_gid()).startswith(prefix)
    }


def data(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata())]


def extents(figure: Figure, artists: list[Any]) -> list[Bbox]:
    figure.draw_without_rendering()
    return [artist.get_window_extent() for artist in artists]


def overlap(one: Bbox, other: Bbox) -> bool:
    shared = Bbox.intersection(one, other)
    return shared is not None and shared.width > 0.5 and shared.height > 0.5


def legend_labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]
