"""Where the machine changed while it was timed: memory bandwidth, measured before and after, drifted.

A figure of times marks such contexts, and its caption says by how much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkv.drawing.style import GREY
from quantkv.instruments.verdict import MAX_DRIFT
from quantkv.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from quantkv.drawing.legend import Legend


def drifts(study: Study) -> dict[int, float]:
    """Contexts whose drift is too large to keep quiet about, with the largest there."""
    known = study.frame.dropna(subset=["bandwidth_drift"])
    largest = known.groupby("context")["bandwidth_drift"].agg(lambda own: max(own, key=abs))
    return {int(context): float(drift) for context, drift in largest.items() if abs(drift) > MAX_DRIFT}


def drifted(study: Study) -> str:
    """The same as a sentence; empty where nothing drifted."""
    found = [f"{drift:+.0%} at {context}" for context, drift in drifts(study).items()]
    return f"Memory bandwidth drifted while timing: {', '.join(found)}." if found else ""


def mark_drifts(ax: Axes, study: Study, legend: Legend) -> None:
    """A question mark above each context at which the machine did not keep its speed."""
    look: dict[str, Any] = {"color": GREY, "marker": "$?$", "markersize": 5, "linewidth": 0}
    for context in drifts(study):
        place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.plot([context], [1.0], gid=f"drift:{context}", **place, **look)
        legend.note("memory bandwidth drifted while timing", **look)
