"""Figures of studies ready for a paper: sized for one or two columns, the legend below the axes."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from quantkv.drawing.figure import blank
from quantkv.drawing.legend import Legend, place_legends
from quantkv.drawing.style import BASELINE, RC, WIDTHS, styles_for
from quantkv.drawing.text import drawn
from quantkv.errors import QuantKVError
from quantkv.report.figures import OVERVIEW, of_studies, panels
from quantkv.studies.study import Study

PANEL_HEIGHT = {"one-column": 2.05, "two-column": 2.35}
TITLE_POINTS = 185.0


def can_draw(study: Study, figure: str) -> bool:
    """Whether the study holds at least one number for this figure."""
    names = OVERVIEW if figure == "overview" else (figure,)
    return any(panels()[name].can_draw(study) for name in names)


def draw(study: Study, figure: str, *, width: str = "one-column") -> Figure:
    """One figure of one study; ``overview`` shows the panels for which there are numbers."""
    if figure not in of_studies():
        raise QuantKVError(f"unknown figure '{figure}'; known are {', '.join(of_studies())}")
    if width not in WIDTHS:
        raise QuantKVError(f"unknown width '{width}'; known are {', '.join(WIDTHS)}")
    names = [name for name in OVERVIEW if can_draw(study, name)] if figure == "overview" else [figure]
    titles = [f"({letter}) {panels()[name].title}" for letter, name in zip("abcd", names) if names[1:]]
    return _compose([study] * len(names), names, titles, width)


def draw_together(found: Sequence[Study], labels: Sequence[str], figure: str) -> Figure:
    """One figure of several studies, a panel for each; as wide as a page."""
    return _compose(found, [figure] * len(found), labels, "two-column")


def _compose(found: Sequence[Study], names: Sequence[str], titles: Sequence[str], width: str) -> Figure:
    """A panel of each study; titles where there are several."""
    specs = {k: v for study in found for k, v in zip(study.frame["label"], study.frame["spec"])}
    styles, legend = styles_for([BASELINE, *specs], specs), Legend()
    inches = [panels()[name].inches for name in names]
    heights = [own(study) if own else PANEL_HEIGHT[width] for own, study in zip(inches, found)]
    columns = 2 if len(names) > 1 and width == "two-column" else 1
    lines = -(-len(names) // columns)
    with matplotlib.rc_context(RC):
        figure = blank(width, lines * max(heights))
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        for study, name, ax in zip(found, names, axes):
            panels()[name].draw(ax, study, styles, legend)
        for title, ax in zip(titles, axes):
            ax.set_title(drawn(title, TITLE_POINTS), loc="left")
        for ax in axes[len(names) :]:
            ax.remove()
        place_legends(figure, legend, styles)
    return figure
