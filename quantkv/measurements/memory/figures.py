"""Bytes held as markers, the closed form as a thin line through them, the 16-bit cache as yardstick."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, log_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import draw_curves, side_steps
from quantkv.drawing.style import DOTTED, GREY, Style
from quantkv.studies.curves import MIB, Metric, contexts_of, curves, per_context
from quantkv.studies.page import Panel
from quantkv.studies.study import Study

THIN = 0.7
HELD = Metric("memory", "held_bytes / 2**20")
PREDICTED = Metric("memory", "predicted_bytes / 2**20")


def memory(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    held = curves(study, HELD)
    predicted = {curve.label: curve for curve in curves(study, PREDICTED) if curve.contexts}
    contexts, sizes = per_context(study, "baseline_16bit_bytes", MIB)
    context_axis(ax, contexts_of(study))
    draw_curves(ax, held, styles, legend, side_steps(ax, held, steep=True), unlinked=set(predicted))
    for curve in (predicted[curve.label] for curve in held if curve.label in predicted):
        style, gid = styles[curve.label], f"predicted:{curve.label}"
        look: dict[str, Any] = {"color": style.color, "linestyle": style.linestyle, "linewidth": THIN}
        ax.plot(curve.contexts, curve.values, zorder=2.8, gid=gid, **look)
        legend.note("memory: markers held, thin lines predicted", color=GREY, linewidth=THIN)
    if contexts:
        look = {"color": "#000000", "linewidth": 0.9, "linestyle": DOTTED}
        ax.plot(contexts, sizes, zorder=2.9, gid="16-bit", **look)
        legend.note("16-bit cache", **look)
    log_axis(ax, [*sizes, *(value for curve in (*held, *predicted.values()) for value in curve.values)])
    ax.set_ylabel("cache held (MiB)")


PANELS = {"memory": Panel(memory, ("held_bytes",), "cache memory")}
