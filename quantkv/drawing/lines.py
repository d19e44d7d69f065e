"""A curve, and how it is put on axes: line, markers, interval bars, crosses for failed cells.

Formats that lie on top of each other are told apart by a sideways step of a point or two (the data stay as
they are, only the drawing moves), by their markers, and by a white rim around each marker. On steep lines,
such as memory, a step would look like another value: there only formats that coincide step apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform, blended_transform_factory

from quantkv.drawing.legend import Legend
from quantkv.drawing.style import GREY, Style

STEP_POINTS = 2.5
TOTAL_POINTS = 14.0
LONE_POINTS = 9.0
LONE_TOTAL = 110.0
AXES_SHARE = 0.8
TWIN_SHARE = 0.04
HOLLOW = "hollow marker: PyTorch reference engine, no speed claim"
HOLLOW_LOOK: dict[str, Any] = {
    "color": GREY, "marker": "o", "markersize": 4, "markerfacecolor": "white", "linewidth": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Values over contexts, the mean over seeds; ``hollow`` where the reference engine made a time."""

    label: str
    contexts: list[int]
    values: list[float]
    low: list[float]
    high: list[float]
    hollow: bool = False
    failed: list[int] = field(default_factory=list)

    def extent(self) -> list[float]:
        """All that is known of its values and their ends."""
        return [value for value in (*self.values, *self.low, *self.high) if math.isfinite(value)]


def draw_curves(
    ax: Axes,
    found: Sequence[Curve],
    styles: dict[str, Style],
    legend: Legend,
    shifts: Sequence[Transform] | None = None,
    unlinked: Collection[str] = (),
) -> None:
    """Every curve with its legend entries; those in ``unlinked`` as markers only."""
    for curve, shift in zip(found, shifts or side_steps(ax, found, steep=False)):
        style = styles[curve.label]
        line = _line(ax, curve, style, shift)
        if curve.label in unlinked:
            line.set_linestyle("none")
        legend.format(curve.label, style)
        if curve.hollow and curve.contexts:
            legend.note(HOLLOW, **HOLLOW_LOOK)
        if curve.failed:
            _crosses(ax, curve, style.color, shift)
            legend.note("cell failed or skipped", color=GREY, marker="x", markersize=4, linewidth=0)


def side_steps(ax: Axes, found: Sequence[Curve], *, steep: bool) -> list[Transform]:
    """Every format's own sideways step, in points, so that equal values stay visible side by side; on steep
    lines only formats of nearly the same values step apart, and the others stand on their context."""
    groups = _coinciding(found) if steep else [list(range(len(found)))]
    steps: dict[int, float] = {}
    for members in groups:
        step = _step(ax, found, len(members))
        steps |= {index: step * (place - (len(members) - 1) / 2) for place, index in enumerate(members)}
    figure: Any = ax.get_figure()
    moves = (ScaledTranslation(steps[at] / 72, 0, figure.dpi_scale_trans) for at in range(len(found)))
    return [ax.transData + move for move in moves]


def _step(ax: Axes, found: Sequence[Curve], count: int) -> float:
    """Wide for a single context, else such that the formats of one context stay apart from the next."""
    contexts = sorted({context for curve in found for context in curve.contexts})
    if len(contexts) < 2:
        return min(LONE_POINTS, LONE_TOTAL / max(1, count))
    octaves = min(math.log2(right / left) for left, right in itertools.pairwise(contexts))
    left, right = ax.get_xlim()
    figure: Any = ax.get_figure()
    grid: Any = ax.get_gridspec()
    gap = 72 * AXES_SHARE * figure.get_figwidth() / grid.ncols * octaves / math.log2(right / left)
    return min(STEP_POINTS, min(TOTAL_POINTS, gap / 2) / max(1, count - 1))


def _coinciding(found: Sequence[Curve]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for index, curve in enumerate(found):
        first = next((first for first in groups if _is_near(found[first], curve)), index)
        groups.setdefault(first, []).append(index)
    return list(groups.values())


def _is_near(one: Curve, other: Curve) -> bool:
    mine, theirs = dict(zip(one.contexts, one.values)), dict(zip(other.contexts, other.values))
    shared = mine.keys() & theirs.keys()
    return bool(shared) and all(abs(mine[c] / theirs[c] - 1) < TWIN_SHARE for c in shared if theirs[c])


def _line(ax: Axes, curve: Curve, style: Style, shift: Transform) -> Line2D:
    look: dict[str, Any] = {"color": style.color, "linestyle": style.linestyle, "marker": style.marker}
    face, edge, rim = ("white", style.color, 0.9) if curve.hollow else (style.color, "white", 0.4)
    look |= {"markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": rim}
    (line,) = ax.plot(curve.contexts, curve.values, label=curve.label, gid=f"format:{curve.label}", **look)
    line.set(markersize=style.size, zorder=3, clip_on=False, transform=shift)
    spans = [span for span in zip(curve.contexts, curve.low, curve.high) if not any(map(math.isnan, span))]
    if spans:
        bars = ax.vlines(*zip(*spans), color=style.color, linewidth=0.8, zorder=2.5)
        bars.set(gid=f"interval:{curve.label}", transform=shift)
    return line


def _crosses(ax: Axes, curve: Curve, color: str, shift: Transform) -> None:
    """A failed cell leaves a cross on the lower edge, never a point at a value."""
    (crosses,) = ax.plot(curve.failed, [0.0] * len(curve.failed), marker="x", markersize=4, linewidth=0)
    edge = blended_transform_factory(shift, ax.transAxes)
    crosses.set(color=color, clip_on=False, zorder=4, gid=f"failed:{curve.label}", transform=edge)
