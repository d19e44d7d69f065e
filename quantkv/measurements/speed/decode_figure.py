"""Decoding against context: milliseconds or tokens per second, with percentiles and DynamicCache in front."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import GREY, draw_curves
from quantkv.drawing.style import Style
from quantkv.measurements.speed.drift import drifts
from quantkv.studies.curves import Metric, column, curves, rate_of, with_baseline
from quantkv.studies.study import Study

MILLISECONDS = Metric("speed", column("decode_ms_median"), column("decode_ms_p10"), column("decode_ms_p90"))
RATE = Metric("speed", column("decode_tokens_per_s"), rate_of("decode_ms_p90"), rate_of("decode_ms_p10"))
DRIFTED = "memory bandwidth drifted while timing"


def decode_ms(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    _decode(ax, study, styles, legend, per_second=False)
    ax.set_ylabel("decode (ms/token)" if study.batch == 1 else "decode (ms/step)")


def decode_tps(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    _decode(ax, study, styles, legend, per_second=True)
    ax.set_ylabel("decode (tokens/s)")


def _decode(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend, *, per_second: bool) -> None:
    own = curves(study, RATE if per_second else MILLISECONDS)
    found = with_baseline(own, study, per_second=per_second)
    context_axis(ax, sorted({context for curve in found for context in (*curve.contexts, *curve.failed)}))
    draw_curves(ax, found, styles, legend)
    top = max([value for curve in found for value in curve.extent()], default=1.0)
    ax.set_ylim(0, 1.06 * top)
    mark_drifts(ax, study, legend)


def mark_drifts(ax: Axes, study: Study, legend: Legend) -> None:
    """A question mark above each context at which the machine did not keep its speed."""
    look: dict[str, Any] = {"color": GREY, "marker": "$?$", "markersize": 5, "linewidth": 0}
    for context in drifts(study):
        place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.plot([context], [1.0], gid=f"drift:{context}", **place, **look)
        legend.note(DRIFTED, **look)
