"""Whatever formats, models, texts and reasons are called, a report of every kind of file is written, and the
names can be read back from it."""

from __future__ import annotations

import csv
import json
import tempfile
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from drawn import legend_labels, only, overlap
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rows import failed_row, memory_row, quality_row, speed_row
from test_paper import retrieval_row
from test_report_escapes import NAMES
from test_report_html import Parsed

from quantkv.drawing.figure import rendered
from quantkv.report.figures import of_studies
from quantkv.report.plots import draw, draw_together
from quantkv.report.write import write_report

HARD = (
    *NAMES,
    "\u202egnp",
    "\x00",
    "\x1b[31m",
    "\ud800",
    "🦙",
    "漢字",
    "é",
    "a" * 3000,
    " lead",
    "NaN",
    "=1+1",
)
names = st.one_of(st.sampled_from(HARD), st.text(min_size=1, max_size=40))


def rows_named(name: str) -> list[dict[str, Any]]:
    """``name`` wherever a user has one to give."""
    options = {"model": name, "spec": "int4-head"}
    rows = [quality_row(name, 512, protocol={"text": name}, values={"flags": [name]}, **options)]
    rows += [speed_row(name, context, **options) for context in (512, 1024)]
    rows += [memory_row(name, 512, **options), failed_row("memory", name, 1024, name, **options)]
    rows.append(retrieval_row(name, 512) | {"key": "retrieval"})
    rows[-1]["requested"] |= {"model": name}
    for row in rows:
        row["provenance"] |= {"weights": name, "revision": name}
        row["provenance"]["machine"] = {"cpu": name, "gpu": name}
    return rows


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@example(r"$\textbf{ours}$")
@example("\x00\ud800\n\\")
@given(names)
def test_a_report_is_written_and_names_can_be_read_back(name: str) -> None:
    stored = name.encode(errors="backslashreplace").decode()  # half a character is told by its code
    figures = ("pareto", "retrieval")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        place = Path(folder)
        for index, row in enumerate(rows_named(name)):
            (place / f"{index}.json").write_text(json.dumps(row))
        write_report(place, place / "report", figures=figures, files=["svg"])
        for figure in figures:
            ElementTree.parse(place / "report" / f"{figure}.svg")
        assert all(
            (place / "report" / f"{table}.tex").read_text() for table in ("table", "retrieval", "figures")
        )
        rows = [
            row["requested"] for row in Parsed((place / "report" / "report.html").read_text()).data["rows"]
        ]
        assert {row["format"] for row in rows} == {stored} == {row["model"] for row in rows}
        with (place / "report" / "table.csv").open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        assert {row["format"] for row in table} == {stored} == {row["model"] for row in table}


@pytest.mark.parametrize("figure", of_studies())
def test_every_figure_shows_names_of_mathematics_markup_and_paths_as_they_stand(figure: str) -> None:
    shown = {r"$\textbf{ours}$", "_a_b", "50 % & $5", "<b>|x|</b>", "/models/`x`"}
    rows = [row for name in shown for row in rows_named(name) if row["kind"] != "retrieval"]
    for row in rows:
        row["requested"] |= {"model": "m", "spec": row["requested"]["format"]}
        row["provenance"] |= {"weights": "w", "machine": {}}
        row["protocol"].pop("text", None)
        if row["kind"] == "quality":
            row["quality"]["positions"] = [{"start": 0, "stop": 16, "n": 8, "kl_mean": 0.1}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing = draw(only(rows), figure)
        rendered(drawing, "pdf")
    texts = legend_labels(drawing) + [
        label.get_text() for ax in drawing.axes for label in ax.get_yticklabels()
    ]
    assert shown <= {text.replace(r"\$", "$") for text in texts}
    assert not any(matplotlib.cbook.is_math_text(text) for text in texts if text.replace(r"\$", "$") in shown)


def test_panels_of_several_models_show_their_names_as_they_stand() -> None:
    names = ["$x$ and $y$", "/models/" + "long/" * 30]
    study = only([quality_row("int4-head", 512)])
    figure = draw_together([study, study], names, "kl")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert [title.replace("\n", "").replace(r"\$", "$") for title in titles] == names
    assert not any(matplotlib.cbook.is_math_text(title) for title in titles)
    boxes: list[Any] = [ax.get_tightbbox() for ax in figure.axes]
    assert not overlap(*boxes) and all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
