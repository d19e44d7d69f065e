"""Figures without pyplot and its global state: laid out once, and as files the same bytes each time."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from quantkv.drawing.style import RC, WIDTHS
from quantkv.wording.escapes import one_line

METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": "matplotlib", "Creator": "quantkv"},
    "svg": {"Date": None, "Creator": "quantkv"},
}


def blank(width: str, height: float) -> Figure:
    """A figure as wide as one column or two, and so many inches high."""
    figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def rendered(figure: Figure, kind: str) -> bytes:
    """PNG, PDF or SVG without dates, so that equal figures are equal files."""
    file = io.BytesIO()
    with matplotlib.rc_context(RC):
        freeze(figure)
        figure.savefig(file, format=kind, metadata=METADATA[kind])
    return file.getvalue()


def freeze(figure: Figure) -> None:
    """Lay out once and round: the solver's last digits differ from run to run, and files must not."""
    for artist in figure.findobj(lambda artist: bool(artist.get_gid())):
        artist.set_gid(one_line(str(artist.get_gid())))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        ax.set_position(Bbox(ax.get_position().get_points().round(4)))
