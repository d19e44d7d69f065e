"""What the plots of a page draw: plain numbers for each study, made from the same curves as the figures.

Every point carries the numbers of the rows behind it, so that a click on it can show where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quantkv.drawing.lines import Curve
from quantkv.measurements.kind import on_a_page
from quantkv.measurements.quality.page import BARS, BOUNDS, CHARTS
from quantkv.report.html.index import Results, cell_of_record, rows_of_records
from quantkv.report.html.looks import looks
from quantkv.report.html.tasks import task_charts
from quantkv.studies.page import Chart, against
from quantkv.studies.study import Study
from quantkv.wording.numbers import compact, number, significant

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
    charts = [_pareto(study, sources), *_charts(study, sources, found)]
    charts += task_charts(study, found)
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


def _pareto(study: Study, sources: Mapping[tuple[Any, ...], list[int]]) -> Payload:
    points = []
    for record in study.records():
        bits, kl = number(record["bits_cache_16"]), number(record["kl_mean"])
        if bits is not None and kl is not None:
            ends = {"low": number(record["kl_low"]), "high": number(record["kl_high"])}
            place = {"format": record["label"], "context": int(record["context"]), "x": bits, "y": kl}
            rows = sources.get(cell_of_record(record), [])
            points.append({**place, **ends, "hollow": False, "rows": rows, "tip": _pareto_tip(record)})
    head = {"name": "pareto", "title": "Bits against quality", "x": "bits per element at this context"}
    barred = any(point["low"] is not None for point in points)
    note = f"{PARETO_NOTE} {BARS}" if barred else PARETO_NOTE
    shape = {"y": CHARTS[0].axis, "scale": "log", "note": note, "bounds": [*BOUNDS], "guides": []}
    return {**head, **shape, "points": points, "failed": []}


def _pareto_tip(record: Mapping[str, Any]) -> str:
    bits = f"{record['bits_cache_16']:.2f} bits at {int(record['context'])} tokens"
    kl = f"KL {_spread(record['kl_mean'], record['kl_low'], record['kl_high'])}"
    return "\n".join([record["label"], bits, kl])


def _charts(study: Study, sources: Mapping[tuple[Any, ...], list[int]], found: Results) -> Iterator[Payload]:
    for own in on_a_page():
        rows = _rows_by_point(study, sources, found, own.name)
        for chart in own.page().charts:
            yield _chart(chart, study, rows, own.remark(study))


def _chart(chart: Chart, study: Study, rows: Mapping[tuple[str, int], list[int]], remark: str) -> Payload:
    drawn = chart.curves(study)
    points = [point for curve in drawn for point in _points(curve, chart, rows)]
    failed = [
        {"format": curve.label, "x": context, "rows": rows.get((curve.label, context), [])}
        for curve in drawn
        for context in curve.failed
    ]
    title = against(chart.title, (place["x"] for place in (*points, *failed)))
    head = {"name": chart.name, "title": title, "x": "context (tokens)", "y": chart.axis}
    said = [chart.note(study), HOLLOW if any(point["hollow"] for point in points) else ""]
    shape = {"scale": chart.scale, "bounds": [*chart.bounds], "guides": chart.guides(study)}
    shape |= {"note": " ".join(filter(None, [*said, remark]))}
    return {**head, **shape, "points": points, "failed": failed}


def _rows_by_point(
    study: Study, sources: Mapping[tuple[Any, ...], list[int]], found: Results, kind: str
) -> dict[tuple[str, int], list[int]]:
    """Rows of one kind by label and context, all seeds together, as the curves are drawn."""
    rows: dict[tuple[str, int], list[int]] = {}
    for record in study.records():
        own = [at for at in sources.get(cell_of_record(record), []) if found.rows[at]["kind"] == kind]
        rows.setdefault((record["label"], int(record["context"])), []).extend(own)
    return rows


def _points(curve: Curve, chart: Chart, rows: Mapping[tuple[str, int], list[int]]) -> Iterable[Payload]:
    for context, value, low, high in zip(curve.contexts, curve.values, curve.low, curve.high):
        said = [curve.label, f"{context} tokens", f"{chart.axis}: {_spread(value, low, high)}"]
        said += ["PyTorch reference engine: no speed claim"] if curve.hollow else []
        ends = {"low": number(low), "high": number(high)}
        place = {"format": curve.label, "context": context, "x": context, "y": value, **ends}
        own = rows.get((curve.label, context), [])
        yield {**place, "hollow": curve.hollow, "rows": own, "tip": "\n".join(said)}


def _spread(value: float, low: Any, high: Any) -> str:
    """Three significant digits, in square brackets the ends of the interval."""
    ends = [number(low), number(high)]
    text = _digits(value)
    return text if None in ends else f"{text} [{', '.join(_digits(end) for end in ends)}]"


def _digits(value: float | None) -> str:
    return compact(value, 3) if value is None or abs(value) < 1 else significant(value, 3)
