"""The figures of quality by name; of them here the perplexity ratio against context, and KL along the scored
span: whether a format loses more the longer decoding goes on."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, log_axis, ratio_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import Curve, draw_curves
from quantkv.drawing.style import Style, rank
from quantkv.errors import QuantKVError
from quantkv.measurements.quality.front_figure import pareto, points
from quantkv.measurements.quality.kl_figure import LABEL, kl
from quantkv.studies.curves import Metric, column, contexts_of, curves, exp_of
from quantkv.studies.panel import Panel
from quantkv.studies.study import Row, Study, requested

RATIO = Metric("quality", column("ppl_ratio"), exp_of("delta_nll_low"), exp_of("delta_nll_high"))


def ppl_ratio(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    found = curves(study, RATIO)
    context_axis(ax, contexts_of(study))
    ax.axhline(1, color="#000000", linewidth=0.6, zorder=1)
    draw_curves(ax, found, styles, legend)
    ends = [value for curve in found for value in curve.extent()]
    ratio_axis(ax, "perplexity ratio", [value for curve in found for value in curve.values], ends)


def kl_by_position(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Mean KL of runs of offsets at the largest context, the mean over seeds; a KL of 0 is not drawn."""
    rows = [row for row in study.rows if _parts(row)]
    if not rows:
        raise QuantKVError("no row has values along the scored span: measure them again to draw them")
    context = max(requested(row, "context") for row in rows)
    labels = dict(zip(study.frame["spec"], study.frame["label"]))
    by_label: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if requested(row, "context") == context:
            by_label.setdefault(labels[requested(row, "spec")], []).extend(_parts(row))
    found = [_curve(label, by_label[label]) for label in sorted(by_label, key=rank)]
    draw_curves(ax, found, styles, legend, [ax.transData] * len(found))
    log_axis(ax, [value for curve in found for value in curve.values])
    longest = max(part["stop"] for row in rows for part in _parts(row))
    ax.set_xlim(0, longest)
    ax.set_xticks([longest * quarter // 4 for quarter in range(4)])
    ax.set_xlabel(f"tokens after the context of {context}")
    ax.set_ylabel(LABEL)


def _parts(row: Row) -> list[dict[str, Any]]:
    """Values along the scored span, which rows of older versions have not."""
    return (row.get("quality") or {}).get("positions") or []


def _curve(label: str, parts: list[dict[str, Any]]) -> Curve:
    """Each run of offsets at its middle."""
    values: dict[int, list[float]] = {}
    for part in parts:
        if part["kl_mean"] is not None:
            values.setdefault((part["start"] + part["stop"]) // 2, []).append(part["kl_mean"])
    means = {middle: sum(found) / len(found) for middle, found in sorted(values.items())}
    drawn = {middle: mean for middle, mean in means.items() if mean > 0}
    nowhere = [math.nan] * len(drawn)
    return Curve(label, list(drawn), list(drawn.values()), nowhere, nowhere)


PANELS = {
    "pareto": Panel(pareto, holds=lambda study: bool(points(study)[1])),
    "ppl_ratio": Panel(ppl_ratio, ("ppl_ratio",), "perplexity ratio", interval="delta_nll_low"),
    "kl": Panel(kl, ("kl_mean",), "KL divergence", interval="kl_low"),
    "kl_by_position": Panel(kl_by_position, holds=lambda study: any(map(_parts, study.rows))),
}
