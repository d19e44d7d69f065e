"""One axes each: a metric against context, one line per format, and nothing of the legend inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes

from quantkv.report.axes import context_axis, log_axis, ratio_axis
from quantkv.report.curves import METRICS, MIB, Curve, contexts_of, curves, per_context, with_baseline
from quantkv.report.lines import GREY, THIN, Legend, draw_curves, steps_apart, thin_line
from quantkv.report.numbers import compact
from quantkv.report.positions import kl_by_position
from quantkv.report.style import DOTTED, Style
from quantkv.report.summary import CAUTION_KL, UNFIT_KL, Study

RED = "#B00020"
DECADES_TO_FLOOR = 2.0
BELOW = 3.0
LOWER_RIGHT = (0.98, 0.04)

Panel = Callable[[Axes, Study, dict[str, Style], Legend], None]


def memory(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Bytes held as markers, the closed form as a thin line through them, the 16-bit cache as yardstick."""
    held = curves(study, METRICS["held"])
    predicted = {curve.label: curve for curve in curves(study, METRICS["predicted"]) if curve.contexts}
    contexts, sizes = per_context(study, "baseline_16bit_bytes", MIB)
    context_axis(ax, contexts_of(study))
    draw_curves(ax, held, styles, legend, steps_apart(ax, held), unlinked=set(predicted))
    for curve in held:
        if curve.label in predicted:
            thin_line(ax, predicted[curve.label], styles[curve.label])
            legend.note("memory: markers held, thin lines predicted", color=GREY, linewidth=THIN)
    if contexts:
        look: dict[str, Any] = {"color": "#000000", "linewidth": 0.9, "linestyle": DOTTED}
        ax.plot(contexts, sizes, zorder=2.9, gid="16-bit", **look)
        legend.note("16-bit cache", **look)
    log_axis(ax, [*sizes, *(value for curve in (*held, *predicted.values()) for value in curve.values)])
    ax.set_ylabel("cache held (MiB)")


def decode_ms(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    _speed(ax, with_baseline(curves(study, METRICS["decode_ms"]), study, per_second=False), styles, legend)
    ax.set_ylabel("decode (ms/token)" if study.batch == 1 else "decode (ms/step)")


def decode_tps(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    _speed(ax, with_baseline(curves(study, METRICS["decode_tps"]), study, per_second=True), styles, legend)
    ax.set_ylabel("decode (tokens/s)")


def ppl_ratio(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    found = curves(study, METRICS["ppl_ratio"])
    context_axis(ax, contexts_of(study))
    ax.axhline(1, color="#000000", linewidth=0.6, zorder=1)
    draw_curves(ax, found, styles, legend)
    ends = [value for curve in found for value in _extent(curve)]
    ratio_axis(ax, "perplexity ratio", [value for curve in found for value in curve.values], ends)


def kl(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Mean KL, with the bounds of caution and unfitness and the floor of the code path."""
    found = curves(study, METRICS["kl"])
    positive = [value for curve in found for value in _extent(curve) if value > 0]
    context_axis(ax, contexts_of(study))
    floor = _floor(ax, study, min(positive, default=CAUTION_KL), legend)
    bottom = min([*positive, *floor, UNFIT_KL]) / BELOW
    draw_curves(ax, [_lifted(curve, bottom) for curve in found], styles, legend)
    log_axis(ax, [*positive, *floor])
    if any(value <= 0 for curve in found for value in curve.values):
        ax.set_ylim(bottom=bottom)
        legend.note("on the lower edge: KL of 0 within rounding", color=GREY, linewidth=0)
    _bounds(ax)
    ax.set_ylabel("KL to exact cache (nats)")


PANELS: dict[str, Panel] = {
    "memory": memory,
    "decode_ms": decode_ms,
    "decode_tps": decode_tps,
    "ppl_ratio": ppl_ratio,
    "kl": kl,
    "kl_by_position": kl_by_position,
}


def _speed(ax: Axes, found: Sequence[Curve], styles: dict[str, Style], legend: Legend) -> None:
    context_axis(ax, sorted({context for curve in found for context in (*curve.contexts, *curve.failed)}))
    draw_curves(ax, found, styles, legend)
    top = max([value for curve in found for value in _extent(curve)], default=1.0)
    ax.set_ylim(0, 1.06 * top)


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
    ax.plot(contexts, values, zorder=1.5, gid="floor", **look)
    legend.note("KL floor of the code path", **look)
    return [value for value in values if value > 0]


def _lifted(curve: Curve, bottom: float) -> Curve:
    """A KL that rounding took to zero or below is drawn on the lower edge of the log axis."""
    values, low, high = (
        [value if math.isnan(value) else max(value, bottom) for value in part]
        for part in (curve.values, curve.low, curve.high)
    )
    return replace(curve, values=values, low=low, high=high)


def _bounds(ax: Axes) -> None:
    bottom, top = ax.get_ylim()
    for bound, word in ((CAUTION_KL, "caution"), (UNFIT_KL, "unfit")):
        if bottom < bound < top:
            ax.axhline(bound, color=RED, linewidth=0.5, linestyle=DOTTED, zorder=1)
            place: dict[str, Any] = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
            ax.annotate(word, (1, bound), (2, 0), va="center", color=RED, annotation_clip=False, **place)
    if top > UNFIT_KL:
        ax.axhspan(UNFIT_KL, top, color=RED, alpha=0.06, linewidth=0, zorder=0)
    ax.set_ylim(bottom, top)


def _extent(curve: Curve) -> list[float]:
    return [value for part in (curve.values, curve.low, curve.high) for value in part if math.isfinite(value)]
