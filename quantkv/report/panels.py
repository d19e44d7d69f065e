"""One axes each: a metric against context, one line per format, and nothing of the legend inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, log_axis, ratio_axis
from quantkv.drawing.style import DOTTED, Style
from quantkv.measurements.quality.kl_figure import kl
from quantkv.measurements.quality.position_figure import kl_by_position
from quantkv.measurements.speed.crossover_figure import crossover
from quantkv.report.front import pareto
from quantkv.studies.curves import METRICS, MIB, Curve, contexts_of, curves, per_context, with_baseline
from quantkv.studies.lines import GREY, THIN, Legend, draw_curves, mark_drifts, steps_apart, thin_line
from quantkv.studies.study import Study

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
    mark_drifts(ax, study, legend)
    ax.set_ylabel("decode (ms/token)" if study.batch == 1 else "decode (ms/step)")


def decode_tps(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    _speed(ax, with_baseline(curves(study, METRICS["decode_tps"]), study, per_second=True), styles, legend)
    mark_drifts(ax, study, legend)
    ax.set_ylabel("decode (tokens/s)")


def ppl_ratio(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    found = curves(study, METRICS["ppl_ratio"])
    context_axis(ax, contexts_of(study))
    ax.axhline(1, color="#000000", linewidth=0.6, zorder=1)
    draw_curves(ax, found, styles, legend)
    ends = [value for curve in found for value in _extent(curve)]
    ratio_axis(ax, "perplexity ratio", [value for curve in found for value in curve.values], ends)


PANELS: dict[str, Panel] = {
    "pareto": pareto,
    "memory": memory,
    "decode_ms": decode_ms,
    "decode_tps": decode_tps,
    "crossover": crossover,
    "ppl_ratio": ppl_ratio,
    "kl": kl,
    "kl_by_position": kl_by_position,
}


def _speed(ax: Axes, found: Sequence[Curve], styles: dict[str, Style], legend: Legend) -> None:
    context_axis(ax, sorted({context for curve in found for context in (*curve.contexts, *curve.failed)}))
    draw_curves(ax, found, styles, legend)
    top = max([value for curve in found for value in _extent(curve)], default=1.0)
    ax.set_ylim(0, 1.06 * top)


def _extent(curve: Curve) -> list[float]:
    return [value for part in (curve.values, curve.low, curve.high) for value in part if math.isfinite(value)]
