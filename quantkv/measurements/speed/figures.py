"""The figures of speed by name; of them here those of decoding against context: milliseconds or tokens per
second, with percentiles and DynamicCache in front."""

from __future__ import annotations

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import draw_curves
from quantkv.drawing.style import Style
from quantkv.measurements.speed.crossover_figure import crossings, crossover, rows_height
from quantkv.measurements.speed.drift import mark_drifts
from quantkv.studies.curves import Metric, curves, with_baseline
from quantkv.studies.page import Panel
from quantkv.studies.study import Study

MILLISECONDS = Metric("speed", "decode_ms_median", "decode_ms_p10", "decode_ms_p90")
RATE = Metric("speed", "decode_tokens_per_s", "1000 * batch / decode_ms_p90", "1000 * batch / decode_ms_p10")
"""Tokens per second, from milliseconds per step of the whole batch."""


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


PANELS = {
    "decode_ms": Panel(decode_ms, ("decode_ms_median", "baseline_ms_median"), "decode time"),
    "decode_tps": Panel(decode_tps, ("decode_tokens_per_s", "baseline_ms_median"), "decode speed"),
    "crossover": Panel(
        crossover,
        holds=lambda study: bool(crossings(study)),
        inches=rows_height,
        interval="ratio_low",
        bars="; bars from the interval of the ratio of times.",
    ),
}
