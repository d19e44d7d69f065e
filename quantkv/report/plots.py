"""Figures ready for a paper: sized for one or two columns, fonts embedded, the legend below the axes.

No pyplot and no global state; the same rows give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend as DrawnLegend
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from quantkv.drawing.style import BASELINE, FONT_SIZE, RC, WIDTHS, Style, styles_for
from quantkv.errors import QuantKVError
from quantkv.measurements.quality.position_figure import has_positions
from quantkv.measurements.speed.crossover_figure import crossings, rows_height
from quantkv.report.front import points
from quantkv.report.panels import PANELS
from quantkv.studies.lines import Legend
from quantkv.studies.study import Study
from quantkv.wording.escapes import drawn, one_line

FIGURES = (*PANELS, "overview")
OVERVIEW = ("memory", "decode_tps", "ppl_ratio", "kl")
MEASURED = {
    "memory": ("held_bytes",),
    "decode_ms": ("decode_ms_median", "baseline_ms_median"),
    "decode_tps": ("decode_tokens_per_s", "baseline_ms_median"),
    "ppl_ratio": ("ppl_ratio",),
    "kl": ("kl_mean",),
}
TITLES = {
    "memory": "cache memory",
    "decode_ms": "decode time",
    "decode_tps": "decode speed",
    "ppl_ratio": "perplexity ratio",
    "kl": "KL divergence",
}
OWN_TEST: dict[str, Callable[[Study], bool]] = {
    "pareto": lambda study: bool(points(study)[1]),
    "crossover": lambda study: bool(crossings(study)),
    "kl_by_position": has_positions,
}
PANEL_HEIGHT = {"one-column": 2.05, "two-column": 2.35}
LEGEND_GAP = 0.04
BESIDE_NAMES = 4.5 * FONT_SIZE
"""Points that a legend of one column holds beside the words: the sample of a line, and space around it."""
LONG_LABEL = 18
TITLE_POINTS = 185.0
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": "matplotlib", "Creator": "quantkv"},
    "svg": {"Date": None, "Creator": "quantkv"},
}


def can_draw(study: Study, figure: str) -> bool:
    """Whether the study holds at least one number for this figure."""
    if figure in OWN_TEST:
        return OWN_TEST[figure](study)
    wanted = OVERVIEW if figure == "overview" else (figure,)
    return any(study.frame[name].notna().any() for panel in wanted for name in MEASURED[panel])


def draw(study: Study, figure: str, *, width: str = "one-column") -> Figure:
    """One figure of one study; ``overview`` shows the panels for which there are numbers."""
    if figure not in FIGURES:
        raise QuantKVError(f"unknown figure '{figure}'; known are {', '.join(FIGURES)}")
    if width not in WIDTHS:
        raise QuantKVError(f"unknown width '{width}'; known are {', '.join(WIDTHS)}")
    panels = [name for name in OVERVIEW if can_draw(study, name)] if figure == "overview" else [figure]
    titles = [f"({chr(ord('a') + index)}) {TITLES[name]}" for index, name in enumerate(panels) if panels[1:]]
    with matplotlib.rc_context(RC):
        return _compose([study] * len(panels), panels, titles, width)


def draw_together(found: Sequence[Study], labels: Sequence[str], figure: str) -> Figure:
    """One figure of several studies, a panel for each; as wide as a page."""
    with matplotlib.rc_context(RC):
        return _compose(found, [figure] * len(found), labels, "two-column")


def rendered(figure: Figure, kind: str) -> bytes:
    """PNG, PDF or SVG without dates, so that equal figures are equal files."""
    file = io.BytesIO()
    with matplotlib.rc_context(RC):
        _freeze(figure)
        figure.savefig(file, format=kind, metadata=METADATA[kind])
    return file.getvalue()


def _compose(found: Sequence[Study], panels: Sequence[str], titles: Sequence[str], width: str) -> Figure:
    """A panel of each study; titles where there are several."""
    columns = 2 if len(panels) > 1 and width == "two-column" else 1
    lines = -(-len(panels) // columns)
    tallest = max(map(rows_height, found)) if "crossover" in panels else PANEL_HEIGHT[width]
    height = lines * tallest
    figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    specs = {k: v for study in found for k, v in zip(study.frame["label"], study.frame["spec"])}
    styles = styles_for([BASELINE, *specs], specs)
    legend = Legend()
    for study, name, ax in zip(found, panels, axes):
        PANELS[name](ax, study, styles, legend)
    for title, ax in zip(titles, axes):
        ax.set_title(drawn(title, TITLE_POINTS), loc="left")
    for ax in axes[len(panels) :]:
        ax.remove()
    place_legends(figure, legend, styles)
    return figure


def place_legends(figure: Figure, legend: Legend, styles: dict[str, Style]) -> None:
    """Formats, those with long names, notes: stacked below the axes; the figure grows by their height."""
    order = [label for label in styles if label in legend.formats]
    short, long = ([label for label in order if (len(label) > LONG_LABEL) is far] for far in (False, True))
    room = 72 * figure.get_figwidth() - BESIDE_NAMES
    named = [[(drawn(label, room), legend.formats[label]) for label in part] for part in (short, long)]
    parts = [_fitted(figure, entries) for entries in (*named, list(legend.notes.items())) if entries]
    heights = [_inches(item, figure)[1] + LEGEND_GAP for item in parts]
    width, axes_height = figure.get_size_inches()
    height = axes_height + sum(heights)
    figure.set_size_inches(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, sum(heights) / height, 1, axes_height / height))
    bottom = height - axes_height
    for item, own in zip(parts, heights):
        bottom -= own
        item.set_bbox_to_anchor((0.5, (bottom + LEGEND_GAP / 2) / height), transform=figure.transFigure)
    _freeze(figure)


def _freeze(figure: Figure) -> None:
    """Lay out once and round: the solver's last digits differ from run to run, and files must not."""
    for artist in figure.findobj(lambda artist: bool(artist.get_gid())):
        artist.set_gid(one_line(str(artist.get_gid())))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        ax.set_position(Bbox(ax.get_position().get_points().round(4)))


def _fitted(figure: Figure, entries: Sequence[tuple[str, Line2D]]) -> DrawnLegend:
    """A legend with as few lines as the figure's width allows, filled evenly."""
    names, lines = zip(*entries)
    for columns in sorted({-(-len(names) // rows) for rows in range(1, len(names) + 1)}, reverse=True):
        legend = figure.legend(
            lines,
            names,
            ncols=columns,
            loc="lower center",
            borderaxespad=0,
            borderpad=0.2,
        )
        legend.set_in_layout(False)
        if columns == 1 or _inches(legend, figure)[0] <= figure.get_figwidth():
            return legend
        legend.remove()
    raise AssertionError("a legend has at least one column")


def _inches(legend: DrawnLegend, figure: Figure) -> tuple[float, float]:
    canvas: Any = figure.canvas
    box = legend.get_window_extent(canvas.get_renderer())
    return box.width / figure.dpi, box.height / figure.dpi
