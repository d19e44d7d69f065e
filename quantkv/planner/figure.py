"""Bytes of a cache against context, a line per format, and the line where the memory left to it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from quantkv.drawing.axes import context_axis, log_axis
from quantkv.drawing.figure import METADATA, blank, rendered
from quantkv.drawing.style import BASELINE, GREY, RC, Style, styles_for
from quantkv.drawing.text import NARROW, drawn
from quantkv.errors import QuantKVError
from quantkv.files import write_whole
from quantkv.planner.planning import Plan

SHORTEST, POINTS = 512, 96
HEIGHT = 3.1
TITLE_POINTS = 180.0


def write_plan_figure(plan: Plan, path: str | Path) -> None:
    """Draw the plan into a .png, .pdf or .svg file. Raises QuantKVError where it cannot be written."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise QuantKVError(f"figure {path}: legal file types: {', '.join(METADATA)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, rendered(draw_plan(plan), kind))
    except OSError as error:
        raise QuantKVError(f"cannot write {path}: {error.strerror}") from error


def draw_plan(plan: Plan) -> Figure:
    """Gigabytes of the cache at the plan's batch, from 512 tokens to where the leanest format is full."""
    lengths = _lengths(plan)
    labels = {name: BASELINE if name == "dynamic" else name for name in plan.footprints}
    styles = styles_for(labels.values())
    room = plan.cache_room / 1e9
    values = [room]
    with matplotlib.rc_context(RC):
        figure = blank("two-column", HEIGHT)
        ax = figure.subplots()
        for name, footprint in plan.footprints.items():
            sizes = [footprint.nbytes(length, plan.batch) / 1e9 for length in lengths]
            _line(ax, lengths, sizes, labels[name], styles[labels[name]])
            values += sizes
        if room > 0:
            words = f"memory left: {room:.4g} GB"
            ax.axhline(room, color="#B22222", linewidth=0.9, label=words, gid="memory")
        _axes(ax, plan, lengths, values)
        figure.legend(loc="outside right upper")
    return figure


def _lengths(plan: Plan) -> list[int]:
    """Contexts in equal steps on a logarithmic axis, to twice what the leanest format holds or the model
    reads, whichever is less."""
    longest = max([plan.context, *(row.longest_context or 0 for row in plan.rows)])
    end = max(2 * min(longest, max(plan.context, plan.position_limit or longest)), 2 * SHORTEST)
    return sorted({round(SHORTEST * (end / SHORTEST) ** (i / (POINTS - 1))) for i in range(POINTS)})


def _line(ax: Any, lengths: list[int], sizes: list[float], label: str, style: Style) -> None:
    look: dict[str, Any] = {"color": style.color, "linestyle": style.linestyle, "marker": style.marker}
    name = drawn(label, NARROW)
    ax.plot(lengths, sizes, label=name, gid=f"format:{label}", markevery=12, markersize=style.size, **look)


def _axes(ax: Any, plan: Plan, lengths: list[int], values: list[float]) -> None:
    context_axis(ax, [2**power for power in range(9, 40) if 2**power <= lengths[-1]])
    log_axis(ax, values)
    if (limit := plan.position_limit) is not None and limit <= lengths[-1]:
        look: dict[str, Any] = {"color": GREY, "linewidth": 0.6, "linestyle": ":"}
        ax.axvline(limit, label=f"positions end: {limit:,}", gid="positions", **look)
    rows = "one sequence" if plan.batch == 1 else f"{plan.batch} sequences"
    ax.set_ylabel("cache (GB, 1e9 bytes)")
    title = drawn(plan.model, TITLE_POINTS)
    ax.set_title(f"{title}: {rows}, weights in {plan.weights_dtype}", loc="left")
