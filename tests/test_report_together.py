"""One table and one figure across models and dtypes, made where a report is asked for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rows import memory_row, quality_row, sweep_rows

from quantkv.errors import QuantKVError
from quantkv.report.plots import draw_together
from quantkv.report.together import joints, pictures_together, said_together, tables_together
from quantkv.report.write import write_report
from quantkv.studies.study import studies
from quantkv.sweep.config import Report

FORMATS = ("int4-head", "kivi-4")
OPTIONS: dict[str, Any] = {"figures": ["kl", "memory"], "files": ["png"], "html": False}


def rows_of(*made: tuple[str, str], **options: Any) -> list[dict[str, Any]]:
    return [
        row
        for model, dtype in made
        for row in sweep_rows((512,), FORMATS, model=model, dtype=dtype, **options)
    ]


GRID = rows_of(("one", "float32"), ("one", "bfloat16"), ("two", "float32"))


@pytest.mark.parametrize(
    ("parts", "labels"),
    [
        (["model", "dtype"], [("one · bfloat16", "one · float32", "two · float32")]),
        (["dtype"], [("bfloat16", "float32")]),
        (["model"], [("one", "two")]),
        ([], []),
    ],
)
def test_studies_that_differ_in_nothing_else_stand_together(parts: list[str], labels: list) -> None:
    assert [joint.labels for joint in joints(studies(GRID), parts)] == labels


def test_another_text_keeps_studies_apart_and_what_one_did_not_measure_does_not() -> None:
    ours = [quality_row("int4-head", 512), memory_row("int4-head", 512)]
    bf16 = quality_row("int4-head", 512, dtype="bfloat16")
    other = quality_row(
        "int4-head", 512, dtype="bfloat16", protocol={"text": "code", "text_sha256": "0" * 64}
    )
    assert len(joints(studies([*ours, bf16]), ["dtype"])) == 1
    assert joints(studies([*ours, other]), ["dtype"]) == []


def test_the_table_has_a_line_for_each_format_of_each_study_and_ranks_within_one() -> None:
    (joint,) = joints(studies(GRID), ["model", "dtype"])
    text = tables_together(joint, ["md"])["together.md"]
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| 512")]
    assert [line[1] for line in lines] == [label for label in joint.labels for _ in range(3)]
    bold = [(line[1], line[2]) for line in lines if "**0.0016" in "".join(line)]
    assert bold == [(label, "kivi-4") for label in joint.labels]
    assert "Each model is ranked by itself." in text


def test_a_caption_says_once_what_holds_for_all_and_under_its_name_what_does_not() -> None:
    (joint,) = joints(studies(GRID), ["dtype"])
    said = said_together(joint)
    assert said.count("Machine:") == said.count("Quality:") == 1
    assert "bfloat16: one (weights" in said and "float32: one (weights" in said


def test_a_figure_has_a_panel_for_each_study_under_its_name() -> None:
    (joint,) = joints(studies(GRID), ["model", "dtype"])
    found = pictures_together(joint, ["kl", "memory", "overview", "retrieval"])
    assert {picture.name for picture in found} == {"kl", "memory"}
    figure = draw_together(joint.studies, joint.labels, "kl")
    assert [ax.get_title(loc="left") for ax in figure.axes] == list(joint.labels)
    for ax, study in zip(figure.axes, joint.studies):
        drawn = {line.get_gid() for line in ax.lines} & {f"format:{name}" for name in FORMATS}
        assert drawn == {f"format:{name}" for name in FORMATS} and len(study.frame)


def test_a_report_writes_them_when_asked(tmp_path: Path) -> None:
    told: list[str] = []
    write_report(GRID, tmp_path, **OPTIONS, together=Report(together=["model", "dtype"]).together)
    made = {path.name for path in tmp_path.iterdir() if "together" in path.name}
    assert made == {
        "together.md",
        "together.tex",
        "kl-together.png",
        "memory-together.png",
        "figures-together.tex",
    }
    write_report(GRID, tmp_path / "without", figures=[], tables=["md"], html=False, tell=told.append)
    assert {path.name for path in (tmp_path / "without").iterdir()} == {"table.md"} and not told
    alone = rows_of(("one", "float32"))
    write_report(alone, tmp_path / "alone", figures=[], html=False, together=["dtype"], tell=told.append)
    assert told == ["nothing to put together: no two studies differ in dtype alone"]
    with pytest.raises(QuantKVError, match="model, dtype"):
        write_report(GRID, tmp_path, together=["batch"])
