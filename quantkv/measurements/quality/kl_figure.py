"""The axis of KL: logarithmic, with the bounds of caution and unfitness, the floor of the code path, and a
place for what rounding took to 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, log_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import draw_curves
from quantkv.drawing.style import DOTTED, GREY, Style
from quantkv.studies.curves import Metric, contexts_of, curves, per_context
from quantkv.studies.study import CAUTION_KL, UNFIT_KL, Study
from quantkv.wording.numbers import compact

RED = "#B00020"
DECADES_TO_FLOOR = 2.0
BELOW = 3.0
LOWER_RIGHT = (0.98, 0.04)
LABEL = "KL to exact cache (nats)"
KL = Metric("quality", "kl_mean", "kl_low", "kl_high")


def kl(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Mean KL, with the bounds of caution and unfitness and the floor of the code path."""
    found = curves(study, KL)
    values = [value for curve in found for value in curve.extent()]
    positive = [value for value in values if value > 0]
    context_axis(ax, contexts_of(study))
    floor = _floor(ax, study, min(positive, default=CAUTION_KL), legend)
    bottom = kl_scale(ax, [*values, *floor], [value for curve in found for value in curve.values], legend)
    shown = []
    for curve in found:
        values, low, high = np.maximum([curve.values, curve.low, curve.high], bottom).tolist()
        shown.append(replace(curve, values=values, low=low, high=high))
    draw_curves(ax, shown, styles, legend)
    bounds(ax)
    ax.set_ylabel(LABEL)


def kl_scale(ax: Axes, values: Sequence[float], means: Sequence[float], legend: Legend) -> float:
    """A log axis around ``values``; returns the height at which a KL is drawn that rounding took to 0 or
    below."""
    positive = [value for value in values if value > 0]
    bottom = min([*positive, UNFIT_KL]) / BELOW
    log_axis(ax, positive)
    if any(value <= 0 for value in means):
        ax.set_ylim(bottom=bottom)
        legend.note("on the lower edge: KL of 0 within rounding", color=GREY, linewidth=0)
    return bottom


def bounds(ax: Axes) -> None:
    """Lines at the bounds of caution and unfitness, where they are within the axis, and what lies beyond."""
    bottom, top = ax.get_ylim()
    for bound, word in ((CAUTION_KL, "caution"), (UNFIT_KL, "unfit")):
        if bottom < bound < top:
            ax.axhline(bound, color=RED, linewidth=0.5, linestyle=DOTTED, zorder=1)
            place: dict[str, Any] = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
            ax.annotate(word, (1, bound), (2, 0), va="center", color=RED, annotation_clip=False, **place)
    if top > UNFIT_KL:
        ax.axhspan(UNFIT_KL, top, color=RED, alpha=0.06, linewidth=0, zorder=0)
    ax.set_ylim(bottom, top)


def _floor(ax: Axes, study: Study, smallest: float, legend: Legend) -> list[float]:
    """The KL of the code path itself: drawn where it is near the data, else told in the legend."""
    contexts, values = per_context(study, "floor_path_kl")
    largest = max(values, default=0.0)
    if largest <= 0:
        return []
    if largest < smallest / 10**DECADES_TO_FLOOR:
        arrow: dict[str, Any] = {"color": GREY, "marker": r"$\downarrow$", "markersize": 5, "linewidth": 0}
        ax.plot(*LOWER_RIGHT, transform=ax.transAxes, gid="floor below", **arrow)
        legend.note(f"KL floor of the code path: {compact(largest, 1)}, below the axis", **arrow)
        return []
    look: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (5, 2))}
    if len(contexts) == 1:  # a line of one point would not be seen
        ax.axhline(largest, zorder=1.5, gid="floor", **look)
    else:
        ax.plot(contexts, values, zorder=1.5, gid="floor", **look)
    legend.note("KL floor of the code path", **look)
    return [value for value in values if value > 0]
