"""From which context on a format decodes faster than DynamicCache: a row per format, a point where it turns.

Between two measured contexts the gain (baseline time minus own time) is interpolated linearly, which is exact
where both times grow linearly with the context. Beyond the measured contexts nothing is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import HOLLOW, HOLLOW_LOOK
from quantkv.drawing.style import BASELINE, GREY, Style, rank
from quantkv.drawing.text import NARROW, drawn
from quantkv.measurements.speed.drift import mark_drifts
from quantkv.studies.study import Study

RATIOS = ("ratio_to_baseline", "ratio_low", "ratio_high")
ROW_INCHES = 0.17
AROUND_ROWS = 0.65
AXES_SHARE = 0.35
"""Of the figure's width, at least: names stand to the left and numbers to the right."""
BEYOND = "arrow: before the first or after the last measured context"


@dataclass(frozen=True)
class Crossing:
    """Tokens: where the gain turns, and where its optimistic and its pessimistic bound do.

    0: faster at every measured context; inf: not faster at the longest of them; NaN: no interval.
    """

    label: str
    contexts: list[int]
    middle: float
    low: float
    high: float
    hollow: bool


def turning_point(contexts: Sequence[int], gains: Sequence[float]) -> float:
    """The context after which every gain is positive, linear between neighbours; 0 if all are, inf if the
    last is not, NaN if any is unknown."""
    if any(map(math.isnan, gains)):
        return math.nan
    losing = [index for index, gain in enumerate(gains) if gain <= 0]
    if not losing:
        return 0.0
    last = losing[-1]
    if last == len(gains) - 1:
        return math.inf
    share = gains[last] / (gains[last] - gains[last + 1])
    return contexts[last] + share * (contexts[last + 1] - contexts[last])


def crossings(study: Study) -> list[Crossing]:
    """Every format whose ratio to the baseline is known at two contexts or more, in the tables' order."""
    known = study.frame.dropna(subset=["ratio_to_baseline", "baseline_ms_median"])
    known = known[known["label"] != BASELINE]
    found = []
    for label in sorted(set(known["label"]), key=rank):
        own = known[known["label"] == label]
        means = own.groupby("context")[[*RATIOS, "baseline_ms_median"]].mean()
        contexts = [int(context) for context in means.index]
        if len(contexts) > 1:
            gains = [list((1 - means[name]) * means["baseline_ms_median"]) for name in RATIOS]
            middle, low, high = (turning_point(contexts, gain) for gain in gains)
            hollow = bool((own["speed_engine"] == "reference").any())
            found.append(Crossing(str(label), contexts, middle, low, high, hollow))
    return found


def rows_height(study: Study) -> float:
    """Inches that the rows and the axis below them need."""
    return AROUND_ROWS + ROW_INCHES * max(2, sum(_lines(crossing) for crossing in crossings(study)))


def crossover(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """A row per format with its number beside it; arrows where the turning point or its interval may lie
    beyond what was measured."""
    found = crossings(study)
    context_axis(ax, sorted({context for crossing in found for context in crossing.contexts}), AXES_SHARE)
    ends = list(itertools.accumulate(map(_lines, found)))
    rows = [end - (_lines(crossing) + 1) / 2 for end, crossing in zip(ends, found)]
    ax.set_ylim(ends[-1] - 0.4, -0.6)
    ax.set_yticks(rows, [_name(crossing) for crossing in found])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    for row, crossing in zip(rows, found):
        _draw(ax, row, crossing, styles[crossing.label], legend)
        place: dict[str, Any] = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
        ax.annotate(_said(crossing), (1, row), (3, 0), va="center", annotation_clip=False, **place)
    mark_drifts(ax, study, legend)
    ax.set_xlabel(f"faster than {BASELINE} from (tokens)")


def _name(crossing: Crossing) -> str:
    return drawn(crossing.label, NARROW)


def _lines(crossing: Crossing) -> int:
    return _name(crossing).count("\n") + 1


def _draw(ax: Axes, row: float, crossing: Crossing, style: Style, legend: Legend) -> None:
    look: dict[str, Any] = {"color": style.color, "clip_on": False}
    if crossing.hollow:
        look["markerfacecolor"] = "white"
        legend.note(HOLLOW, **HOLLOW_LOOK)
    first, last = crossing.contexts[0], crossing.contexts[-1]
    if not math.isnan(crossing.low) and not math.isnan(crossing.high):
        ends = [min(max(end, first), last) for end in (crossing.low, crossing.high)]
        gid = f"interval:{crossing.label}"
        ax.hlines(row, *ends, color=style.color, linewidth=0.8, zorder=2.5, gid=gid)
    for place, marker, end in ((first, "<", 0.0), (last, ">", math.inf)):
        if end in (crossing.low, crossing.middle, crossing.high):
            ax.plot([place], [row], marker=marker, markersize=3, gid=f"beyond:{crossing.label}", **look)
            legend.note(BEYOND, color=GREY, marker=">", markersize=3, linewidth=0)
    if 0 < crossing.middle < math.inf:
        edge = style.color if crossing.hollow else "white"
        look |= {"marker": style.marker, "markersize": style.size + 0.8, "markeredgecolor": edge}
        ax.plot([crossing.middle], [row], gid=f"format:{crossing.label}", markeredgewidth=0.6, **look)


def _said(crossing: Crossing) -> str:
    """Two digits: an interpolation supports no more."""
    if crossing.middle == 0:
        return f"at {crossing.contexts[0]} already"
    if crossing.middle == math.inf:
        return f"not by {crossing.contexts[-1]}"
    return f"≈ {float(f'{crossing.middle:.1e}'):.0f}"
