"""The figures of quality by name; of them here the perplexity ratio against context, and KL along the scored
span: whether a format loses more the longer decoding goes on."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from quantkv.drawing.axes import context_axis, log_axis, ratio_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import Curve, draw_curves
from quantkv.drawing.style import Style, rank
from quantkv.errors import QuantKVError
from quantkv.measurements.quality.front_figure import pareto, points
from quantkv.measurements.quality.kl_figure import LABEL, kl
from quantkv.studies.curves import Metric, contexts_of, curves
from quantkv.studies.page import Panel
from quantkv.studies.study import Row, Study, requested

RATIO = Metric("quality", "ppl_ratio", "exp(delta_nll_low)", "exp(delta_nll_high)")


def ppl_ratio(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    found = curves(study, RATIO)
    context_axis(ax, contexts_of(study))
    ax.axhline(1, color="#000000", linewidth=0.6, zorder=1)
    draw_curves(ax, found, styles, legend)
    ends = [value for curve in found for value in curve.extent()]
    ratio_axis(ax, "perplexity ratio", [value for curve in found for value in curve.values], ends)


def kl_by_position(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Mean KL of runs of offsets at the largest context, the mean over seeds; a KL of 0 is not drawn."""
    labels = dict(zip(study.frame["spec"], study.frame["label"]))
    parts = pd.DataFrame(
        {"label": labels[requested(row, "spec")], "context": requested(row, "context"), **part}
        for row in study.rows
        for part in _parts(row)
    )
    if parts.empty:
        raise QuantKVError("no row has values along the scored span: measure them again to draw them")
    context, longest = int(parts["context"].max()), int(parts["stop"].max())
    by_label = parts[parts["context"] == context].groupby("label")
    found = [_curve(label, by_label.get_group(label)) for label in sorted(by_label.groups, key=rank)]
    draw_curves(ax, found, styles, legend, [ax.transData] * len(found))
    log_axis(ax, [value for curve in found for value in curve.values])
    ax.set_xlim(0, longest)
    ax.set_xticks([longest * quarter // 4 for quarter in range(4)])
    ax.set_xlabel(f"tokens after the context of {context}")
    ax.set_ylabel(LABEL)


def _parts(row: Row) -> list[dict[str, Any]]:
    """Values along the scored span, which rows of older versions have not."""
    return (row.get("quality") or {}).get("positions") or []


def _curve(label: str, parts: pd.DataFrame) -> Curve:
    """Each run of offsets at its middle."""
    means = parts["kl_mean"].astype(float).groupby((parts["start"] + parts["stop"]) // 2).mean()
    drawn = means[means > 0]
    nowhere = [math.nan] * len(drawn)
    return Curve(label, drawn.index.tolist(), drawn.tolist(), nowhere, nowhere)


PANELS = {
    "pareto": Panel(pareto, holds=lambda study: bool(points(study)[1])),
    "ppl_ratio": Panel(ppl_ratio, ("ppl_ratio",), "perplexity ratio", interval="delta_nll_low"),
    "kl": Panel(kl, ("kl_mean",), "KL divergence", interval="kl_low"),
    "kl_by_position": Panel(kl_by_position, holds=lambda study: any(map(_parts, study.rows))),
}
