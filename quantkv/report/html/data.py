"""What the plots of a page draw: plain numbers for each study, made from the same curves as the figures.

Every point carries the numbers of the rows behind it, so that a click on it can show where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantkv.drawing.lines import Curve
from quantkv.measurements.kind import kind, on_a_page
from quantkv.measurements.quality.page import BARS, BOUNDS, CHARTS
from quantkv.report.html.index import Cell, Results, cell_of_record, part, rows_of_records, task_rows
from quantkv.report.html.looks import looks
from quantkv.studies.headings import digits
from quantkv.studies.page import Chart, RowOnPage, against
from quantkv.studies.study import Study
from quantkv.wording.numbers import missing, number

Payload = dict[str, Any]
PARETO_NOTE = (
    "Bits per element of the whole cache, exact tokens counted at 16 (bits_cache_16), against mean KL. "
    "The dashed line joins the formats that no other beats in both."
)
HOLLOW = "Hollow: PyTorch reference engine, no claim."


def payload(found: Results) -> Payload:
    """Everything the scripts of the page read; plain JSON."""
    plotted = [_study(study, index, found) for index, study in enumerate(found.studies)]
    return {"rows": [dict(row) for row in found.rows], "labels": list(found.labels), "studies": plotted}


def _study(study: Study, index: int, found: Results) -> Payload:
    sources = rows_of_records(study, found.rows)
    charts = [_pareto(study, sources), *_charts(study, sources, found), *_task_charts(study, found)]
    specs = dict(zip(study.frame["label"], study.frame["spec"]))
    labels = [*specs, *(point["format"] for chart in charts for point in chart["points"])]
    contexts = {int(context) for context in study.frame["context"]}
    contexts |= {point["context"] for chart in charts for point in chart["points"]}
    return {
        "name": study.title,
        "contexts": sorted(contexts),
        "formats": looks(labels, f"s{index}f", specs),
        "charts": [chart for chart in charts if chart["points"] or chart["failed"]],
    }


def _pareto(study: Study, sources: Mapping[Cell, list[int]]) -> Payload:
    points = []
    for record in study.records():
        bits, kl = number(record["bits_cache_16"]), number(record["kl_mean"])
        if bits is not None and kl is not None:
            label, context = record["label"], int(record["context"])
            ends = (record["kl_low"], record["kl_high"])
            said = [f"{bits:.2f} bits at {context} tokens", f"KL {_spread(kl, *ends)}"]
            rows = sources.get(cell_of_record(record), [])
            points.append(_point(label, context, bits, (kl, *ends), rows, said))
    barred = any(point["low"] is not None for point in points)
    return {
        "name": "pareto",
        "title": "Bits against quality",
        "x": "bits per element at this context",
        "y": CHARTS[0].axis,
        "scale": "log",
        "note": f"{PARETO_NOTE} {BARS}" if barred else PARETO_NOTE,
        "bounds": [*BOUNDS],
        "guides": [],
        "points": points,
        "failed": [],
    }


def _point(
    label: str,
    context: int,
    x: float,
    y: tuple[float, Any, Any],
    rows: Sequence[int],
    said: Sequence[str],
    hollow: bool = False,
) -> Payload:
    """``y`` with the ends of its interval; ``said`` stands below the label when somebody points at it."""
    value, low, high = y
    place = {"format": label, "context": context, "x": x, "y": value, "hollow": hollow, "rows": rows}
    return place | {"low": number(low), "high": number(high), "tip": "\n".join([label, *said])}


def _charts(study: Study, sources: Mapping[Cell, list[int]], found: Results) -> Iterator[Payload]:
    for own in on_a_page():
        rows: dict[tuple[str, int], list[int]] = {}  # of all seeds together, as the curves are drawn
        for record in study.records():
            at = [n for n in sources.get(cell_of_record(record), []) if found.rows[n]["kind"] == own.name]
            rows.setdefault((record["label"], int(record["context"])), []).extend(at)
        for chart in own.page.charts:
            yield _chart(chart, study, rows, own.remark(study))


def _chart(chart: Chart, study: Study, rows: Mapping[tuple[str, int], list[int]], remark: str) -> Payload:
    drawn = chart.curves(study)
    points = [point for curve in drawn for point in _points(curve, chart, rows)]
    failed = [
        {"format": curve.label, "x": context, "rows": rows.get((curve.label, context), [])}
        for curve in drawn
        for context in curve.failed
    ]
    said = [chart.note(study), HOLLOW if any(point["hollow"] for point in points) else "", remark]
    return {
        "name": chart.name,
        "title": against(chart.title, (place["x"] for place in (*points, *failed))),
        "x": "context (tokens)",
        "y": chart.axis,
        "scale": chart.scale,
        "note": " ".join(filter(None, said)),
        "bounds": [*chart.bounds],
        "guides": chart.guides(study),
        "points": points,
        "failed": failed,
    }


def _task_charts(study: Study, found: Results) -> Iterator[Payload]:
    """The charts of all parts that were asked of the study's model."""
    own: dict[tuple[str, str], list[RowOnPage]] = {}
    for at in task_rows(study, found):
        row = found.rows[at]
        if row.get(row["kind"]):
            own.setdefault((row["kind"], part(row)), []).append((at, found.labels[at], row))
    charts = (kind(name).chart(task, own[name, task]) for name, task in sorted(own))
    yield from filter(None, charts)


def _points(curve: Curve, chart: Chart, rows: Mapping[tuple[str, int], list[int]]) -> Iterator[Payload]:
    for context, *y in zip(curve.contexts, curve.values, curve.low, curve.high):
        said = [f"{context} tokens", f"{chart.axis}: {_spread(*y)}"]
        said += ["PyTorch reference engine: no speed claim"] if curve.hollow else []
        own = rows.get((curve.label, context), [])
        yield _point(curve.label, context, context, (y[0], y[1], y[2]), own, said, curve.hollow)


def _spread(value: float, low: Any, high: Any) -> str:
    """In square brackets the ends of the interval, where there are any."""
    ends = "" if missing(low) or missing(high) else f" [{digits(low)}, {digits(high)}]"
    return f"{digits(value)}{ends}"
