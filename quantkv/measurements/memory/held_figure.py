"""Bytes held as markers, the closed form as a thin line through them, the 16-bit cache as yardstick."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, log_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import GREY, Curve, draw_curves, steps_apart
from quantkv.drawing.style import DOTTED, Style
from quantkv.studies.curves import MIB, Metric, column, contexts_of, curves, per_context
from quantkv.studies.study import Study

THIN = 0.7
HELD = Metric("memory", column("held_bytes", MIB))
PREDICTED = Metric("memory", column("predicted_bytes", MIB))


def memory(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    held = curves(study, HELD)
    predicted = {curve.label: curve for curve in curves(study, PREDICTED) if curve.contexts}
    contexts, sizes = per_context(study, "baseline_16bit_bytes", MIB)
    context_axis(ax, contexts_of(study))
    draw_curves(ax, held, styles, legend, steps_apart(ax, held), unlinked=set(predicted))
    for label in (curve.label for curve in held if curve.label in predicted):
        _thin_line(ax, predicted[label], styles[label])
        legend.note("memory: markers held, thin lines predicted", color=GREY, linewidth=THIN)
    if contexts:
        look: dict[str, Any] = {"color": "#000000", "linewidth": 0.9, "linestyle": DOTTED}
        ax.plot(contexts, sizes, zorder=2.9, gid="16-bit", **look)
        legend.note("16-bit cache", **look)
    log_axis(ax, [*sizes, *(value for curve in (*held, *predicted.values()) for value in curve.values)])
    ax.set_ylabel("cache held (MiB)")


def _thin_line(ax: Axes, curve: Curve, style: Style) -> None:
    (line,) = ax.plot(curve.contexts, curve.values, color=style.color, linestyle=style.linestyle)
    line.set(linewidth=THIN, zorder=2.8, gid=f"predicted:{curve.label}")
