"""What a figure draws, apart from how: a curve per format with its values, intervals, failures and engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from quantkv.drawing.lines import Curve
from quantkv.drawing.style import BASELINE, rank
from quantkv.studies.kind import reported
from quantkv.studies.study import Study

MIB = 2.0**-20


@dataclass(frozen=True)
class Metric:
    """How a summary gives a value and its interval, as terms of its columns that pandas evaluates, and which
    kind of cell measured it."""

    kind: str
    value: str
    low: str = ""
    high: str = ""


def curves(study: Study, metric: Metric) -> list[Curve]:
    """One curve per format that has a value or a failure, in the order of the tables."""
    frame = study.frame
    bits = frame.groupby("label")["bits_packed"].max().to_dict()
    labels = sorted(set(frame["label"]), key=lambda label: rank(label, bits.get(label)))
    found = [_curve(label, frame[frame["label"] == label], metric) for label in labels]
    return [curve for curve in found if curve.contexts or curve.failed]


def with_baseline(found: list[Curve], study: Study, *, per_second: bool) -> list[Curve]:
    """DynamicCache's times in front: its own cells, or else the medians interleaved with the formats."""
    if any(curve.label == BASELINE and curve.contexts for curve in found):
        return found
    contexts, medians = per_context(study, "baseline_ms_median")
    values = [1000 * study.batch / ms for ms in medians] if per_second else medians
    nothing = [float("nan")] * len(values)
    interleaved = [Curve(BASELINE, contexts, values, nothing, nothing)] if values else []
    return interleaved + [curve for curve in found if curve.label != BASELINE]


def per_context(study: Study, name: str, scale: float = 1.0) -> tuple[list[int], list[float]]:
    """One value per context that all formats share, such as the size of a 16-bit cache."""
    medians = study.frame.groupby("context")[name].median().dropna() * scale
    return [int(context) for context in medians.index], [float(value) for value in medians]


def contexts_of(study: Study) -> list[int]:
    return sorted({int(context) for context in study.frame["context"]})


def _curve(label: str, frame: pd.DataFrame, metric: Metric) -> Curve:
    made = {"value": metric.value, "low": metric.low, "high": metric.high}
    measured = frame.assign(**{name: frame.eval(term) if term else np.nan for name, term in made.items()})
    means = measured.dropna(subset=["value"]).groupby("context")[list(made)].mean()
    contexts = [int(context) for context in means.index]
    status = frame[f"{metric.kind}_status"]
    failed = {int(context) for context in frame.loc[status.notna() & (status != "ok"), "context"]}
    hollow = reported(metric.kind).timed and bool((frame["speed_engine"] == "reference").any())
    values, low, high = ([float(value) for value in means[name]] for name in made)
    return Curve(label, contexts, values, low, high, hollow, sorted(failed - set(contexts)))
