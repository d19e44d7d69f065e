"""KL along the scored span: whether a format loses more the longer decoding goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from quantkv.drawing.axes import log_axis
from quantkv.drawing.legend import Legend
from quantkv.drawing.lines import Curve, draw_curves
from quantkv.drawing.style import Style, rank
from quantkv.errors import QuantKVError
from quantkv.studies.study import Row, Study, requested


def has_positions(study: Study) -> bool:
    """Whether any row of the study has its values along the scored span; those of older versions have not."""
    return any(_parts(row) for row in study.rows)


def kl_by_position(ax: Axes, study: Study, styles: dict[str, Style], legend: Legend) -> None:
    """Mean KL of runs of offsets at the largest context, the mean over seeds; a KL of 0 is not drawn."""
    rows = [row for row in study.rows if _parts(row)]
    if not rows:
        raise QuantKVError("no row has values along the scored span: measure them again to draw them")
    context = max(requested(row, "context") for row in rows)
    labels = dict(zip(study.frame["spec"], study.frame["label"]))
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        if requested(row, "context") == context:
            by_label.setdefault(labels[requested(row, "spec")], []).append(row)
    found = [_curve(label, by_label[label]) for label in sorted(by_label, key=rank)]
    draw_curves(ax, found, styles, legend, [ax.transData] * len(found))
    log_axis(ax, [value for curve in found for value in curve.values if value > 0])
    longest = max(part["stop"] for row in rows for part in _parts(row))
    ax.set_xlim(0, longest)
    ax.set_xticks([longest * quarter // 4 for quarter in range(4)])
    ax.set_xlabel(f"tokens after the context of {context}")
    ax.set_ylabel("KL to exact cache (nats)")


def _parts(row: Row) -> list[dict[str, Any]]:
    return (row.get("quality") or {}).get("positions") or []


def _curve(label: str, rows: Iterable[Row]) -> Curve:
    """Each run of offsets at its middle."""
    values: dict[int, list[float]] = {}
    for part in (part for row in rows for part in _parts(row) if part["kl_mean"] is not None):
        values.setdefault((part["start"] + part["stop"]) // 2, []).append(part["kl_mean"])
    means = {middle: sum(found) / len(found) for middle, found in values.items()}
    drawn = {middle: mean for middle, mean in sorted(means.items()) if mean > 0}
    nowhere = [math.nan] * len(drawn)
    return Curve(label, list(drawn), list(drawn.values()), nowhere, nowhere)
