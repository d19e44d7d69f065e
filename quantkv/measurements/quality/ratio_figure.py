"""Perplexity relative to the exact cache against context."""

from __future__ import annotations

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, ratio_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import draw_curves
from quantkv.drawing.style import Style
from quantkv.studies.curves import Metric, column, contexts_of, curves, exp_of
from quantkv.studies.study import Study

RATIO = Metric("quality", column("ppl_ratio"), exp_of("delta_nll_low"), exp_of("delta_nll_high"))


def ppl_ratio(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    found = curves(study, RATIO)
    context_axis(ax, contexts_of(study))
    ax.axhline(1, color="#000000", linewidth=0.6, zorder=1)
    draw_curves(ax, found, styles, legend)
    ends = [value for curve in found for value in curve.extent()]
    ratio_axis(ax, "perplexity ratio", [value for curve in found for value in curve.values], ends)
