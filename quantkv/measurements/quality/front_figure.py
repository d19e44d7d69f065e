"""Quality against size: a point per format, and the formats that no other beats in both.

Both numbers come from the same quality row, so that a point is one cache and never two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from quantkv.drawing.legend import Legend
from quantkv.drawing.style import GREY, Style, rank
from quantkv.measurements.quality.kl_figure import LABEL, bounds, kl_scale
from quantkv.studies.study import Study

PAD = 0.06
NUMBERS = ["bits_cache_16", "kl_mean", "kl_low", "kl_high"]
AXIS = "cache bits per element at {context} tokens\n(bits_cache_16: exact tokens count 16 bits)"


@dataclass(frozen=True)
class Point:
    """Bits per element of the whole cache, exact tokens counted at 16, and mean KL with its interval."""

    label: str
    bits: float
    kl: float
    low: float
    high: float


def points(study: Study) -> tuple[int, list[Point]]:
    """The largest context with both numbers, and its formats, means over seeds."""
    known = study.frame.dropna(subset=["bits_cache_16", "kl_mean"])
    if known.empty:
        return 0, []
    context = int(known["context"].max())
    means = known[known["context"] == context].groupby("label")[NUMBERS].mean()
    found = [Point(str(label), *map(float, row)) for label, row in means.iterrows()]
    return context, sorted(found, key=lambda point: rank(point.label, point.bits))


def pareto_front(found: Sequence[Point]) -> list[Point]:
    """Those for which no other has at most their bits and at most their KL, by bits; a KL below 0 is 0."""
    front: list[Point] = []
    for point in sorted(found, key=lambda point: (point.bits, max(point.kl, 0.0))):
        if not front or max(point.kl, 0.0) < max(front[-1].kl, 0.0):
            front.append(point)
    return front


def pareto(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Mean KL over bits at the largest context, the front as a staircase with nothing below it."""
    context, found = points(study)
    values = [value for point in found for value in (point.kl, point.low, point.high)]
    bottom = kl_scale(ax, values, [point.kl for point in found], legend)
    for point in found:
        _draw(ax, point, styles[point.label], bottom)
        legend.format(point.label, styles[point.label], linked=False)
    bits = [point.bits for point in found]
    pad = PAD * max(1.0, max(bits) - min(bits))
    ax.set_xlim(min(bits) - pad, max(bits) + pad)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    bounds(ax)
    _stairs(ax, found, bottom, legend)
    ax.set_xlabel(AXIS.format(context=context))
    ax.set_ylabel(LABEL)


def _stairs(ax: Axes, found: Sequence[Point], bottom: float, legend: Legend) -> None:
    """A front of one point has no step: its two sides bound what that point beats."""
    places = [(point.bits, max(point.kl, bottom)) for point in pareto_front(found)]
    if len(places) == 1:
        ((bits, kl),) = places
        places = [(bits, ax.get_ylim()[1]), (bits, kl), (ax.get_xlim()[1], kl)]
    look: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (3, 1.5))}
    ax.plot(*zip(*places), drawstyle="steps-post", gid="front", zorder=2, **look)
    legend.note("Pareto front of the means", **look)


def _draw(ax: Axes, point: Point, style: Style, bottom: float) -> None:
    look: dict[str, Any] = {"color": style.color, "marker": style.marker, "markersize": style.size + 0.8}
    look |= {"markeredgecolor": "white", "markeredgewidth": 0.4, "clip_on": False, "zorder": 3}
    ax.plot([point.bits], [max(point.kl, bottom)], linestyle="none", gid=f"format:{point.label}", **look)
    if point.low == point.low and point.high == point.high:
        ends, gid = (max(point.low, bottom), max(point.high, bottom)), f"interval:{point.label}"
        ax.vlines(point.bits, *ends, color=style.color, linewidth=0.8, zorder=2.5, gid=gid)
