"""The legend of a figure: what it must explain, and its place below the axes.

matplotlib's own ``loc="outside lower center"`` takes the room from the axes and lays two legends over
each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure
from matplotlib.legend import Legend as DrawnLegend
from matplotlib.lines import Line2D

from quantkv.drawing.figure import freeze
from quantkv.drawing.style import FONT_SIZE, Style
from quantkv.drawing.text import drawn

GAP = 0.04
BESIDE_NAMES = 4.5 * FONT_SIZE
"""Points that a legend of one column holds beside the words: the sample of a line, and space around it."""
LONG_LABEL = 18


@dataclass
class Legend:
    """The formats drawn, and notes on lines and marks."""

    formats: dict[str, Line2D] = field(default_factory=dict)
    notes: dict[str, Line2D] = field(default_factory=dict)

    def note(self, text: str, **look: Any) -> None:
        self.notes.setdefault(text, Line2D([], [], **look))

    def format(self, label: str, style: Style, *, linked: bool = True) -> None:
        """A sample of the format, without the line where a figure draws none."""
        line: dict[str, Any] = {"linestyle": style.linestyle if linked else "none", "color": style.color}
        rim: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
        sample = Line2D([], [], marker=style.marker, markersize=style.size, **line, **rim)
        self.formats.setdefault(label, sample)


def place_legends(figure: Figure, legend: Legend, styles: Mapping[str, Style]) -> None:
    """Formats, those with long names, notes: stacked below the axes; the figure grows by their height."""
    order = [label for label in styles if label in legend.formats]
    short, long = ([label for label in order if (len(label) > LONG_LABEL) is far] for far in (False, True))
    room = 72 * figure.get_figwidth() - BESIDE_NAMES
    named = [[(drawn(label, room), legend.formats[label]) for label in part] for part in (short, long)]
    parts = [_fitted(figure, entries) for entries in (*named, list(legend.notes.items())) if entries]
    heights = [_inches(item, figure)[1] + GAP for item in parts]
    width, axes_height = figure.get_size_inches()
    height = axes_height + sum(heights)
    figure.set_size_inches(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, sum(heights) / height, 1, axes_height / height))
    bottom = height - axes_height
    for item, own in zip(parts, heights):
        bottom -= own
        item.set_bbox_to_anchor((0.5, (bottom + GAP / 2) / height), transform=figure.transFigure)
    freeze(figure)


def _fitted(figure: Figure, entries: Sequence[tuple[str, Line2D]]) -> DrawnLegend:
    """A legend with as few lines as the figure's width allows, filled evenly."""
    names, lines = zip(*entries)
    look: dict[str, Any] = {"loc": "lower center", "borderaxespad": 0, "borderpad": 0.2}
    for columns in sorted({-(-len(names) // rows) for rows in range(1, len(names) + 1)}, reverse=True):
        legend = figure.legend(lines, names, ncols=columns, **look)
        legend.set_in_layout(False)
        if columns == 1 or _inches(legend, figure)[0] <= figure.get_figwidth():
            return legend
        legend.remove()
    raise AssertionError("a legend has at least one column")


def _inches(legend: DrawnLegend, figure: Figure) -> tuple[float, float]:
    canvas: Any = figure.canvas
    box = legend.get_window_extent(canvas.get_renderer())
    return box.width / figure.dpi, box.height / figure.dpi
