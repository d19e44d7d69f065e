"""What a report groups by is shown wherever it has more than one value, and only there."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rows import memory_row, quality_row, speed_row
from test_paper import retrieval_row
from typer.testing import CliRunner

from quantkv.commands.cli import app
from quantkv.comparison import compare
from quantkv.comparison.table import comparison_lines
from quantkv.report.html.alerts import alerts
from quantkv.report.html.grid import grids
from quantkv.report.html.index import results, task_rows
from quantkv.report.terminal import terminal_table
from quantkv.report.write import write_report
from quantkv.studies.captions import caption
from quantkv.studies.groups import groups
from quantkv.studies.study import studies, summary_frame
from quantkv.wording.parts import differing, titles

OLD, NEW = "a" * 64, "b" * 64


def made(row: dict[str, Any], **provenance: Any) -> dict[str, Any]:
    return row | {"provenance": row["provenance"] | provenance}


def of(
    dtype: str = "float32", weights: str = OLD, kl: float = 0.0058, text: str = ""
) -> list[dict[str, Any]]:
    """Quality, speed, memory and retrieval of one checkpoint in one precision."""
    protocol = {"text": text, "text_sha256": text.encode().hex().ljust(64, "0")} if text else {}
    rows = [
        quality_row("int4-head", 512, dtype=dtype, values={"kl_mean": kl}, protocol=protocol),
        speed_row("int4-head", 512, dtype=dtype),
        memory_row("int4-head", 512, dtype=dtype),
        retrieval_row("int4-head", 512),
    ]
    rows[-1]["requested"] |= {"dtype": dtype}
    keys = [f"{row['kind']}-{dtype}-{weights[0]}-{text}".ljust(64, "0") for row in rows]
    return [made(row, fingerprint=weights) | {"key": key} for row, key in zip(rows, keys)]


def printed(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    terminal_table(rows, Console(file=out, width=200))
    return out.getvalue()


DTYPES = [*of("float32"), *of("bfloat16", NEW)]  # the dtype is part of a fingerprint
TEXTS = [*of(text="wiki.txt"), *of(text="code.txt")]
CHECKPOINTS = [*of(kl=0.001), *of(weights=NEW, kl=0.002)]


@pytest.mark.parametrize(
    ("rows", "said", "unsaid"),
    [
        (DTYPES, ("float32", "bfloat16"), "weights "),
        (TEXTS, ("wiki.txt", "code.txt"), "· float32"),
        (CHECKPOINTS, ("weights aaaaaaaaaaaa", "weights bbbbbbbbbbbb"), "· float32"),
    ],
    ids=["dtypes", "texts", "checkpoints"],
)
def test_every_file_says_what_sets_its_tables_apart(
    rows: list[dict], said: tuple[str, str], unsaid: str, tmp_path: Path
) -> None:
    write_report(rows, tmp_path, figures=["kl", "retrieval"], files=["png"])
    heads = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("## ")]
    page = (tmp_path / "report.html").read_text()
    headings = [part.split("</h2>")[0] for part in page.split("In words")[1:]]
    names = [path.name for path in tmp_path.glob("kl-*.png")]
    lines = [line for line in printed(rows).splitlines() if line.startswith("smollm2") and " · " in line]
    slugs = [word.replace(" ", "-") for word in said]
    for found, wanted in ((heads, said), (headings, said), (names, slugs), (lines, said)):
        assert len(found) >= 2
        assert all(any(word in one for one in found) for word in wanted), found
        assert not any(unsaid in one for one in found), found
    labels = [line for line in (tmp_path / "table.tex").read_text().splitlines() if "\\label" in line]
    assert len(set(labels)) == len(labels) == 2
    assert len(summary_frame(rows)) == 2 and len(studies(rows)) == 2


def test_one_study_says_no_more_than_its_model() -> None:
    (study,) = studies(of())
    assert (study.title, study.slug) == (study.model, "smollm2-135m-instruct-q4-1-float32-b1")
    assert study.warnings == () and "fingerprint" not in caption(study)


def test_two_checkpoints_of_one_name_stand_apart_with_a_warning() -> None:
    found = studies(CHECKPOINTS)
    assert [study.records()[0]["kl_mean"] for study in found] == [0.001, 0.002]
    warning = "other weights were measured under this name too: aaaaaaaaaaaa here, bbbbbbbbbbbb in tables"
    assert warning in caption(found[0]) and warning in printed(CHECKPOINTS)
    assert "fingerprint aaaaaaaaaaaa" in caption(found[0]) and "fingerprint bbbbbbbbbbbb" in caption(found[1])
    told = [alert for alert in alerts(results(CHECKPOINTS)) if "other weights" in alert.words]
    assert [alert.level for alert in told] == ["caution", "caution"]
    frame = summary_frame(CHECKPOINTS)
    assert sorted(frame["fingerprint"]) == [OLD, NEW]
    assert "fingerprint" not in summary_frame(of()).columns
    assert not any("more than once" in alert.words for alert in alerts(results(CHECKPOINTS)))


def test_tasks_of_two_checkpoints_are_tables_of_their_own() -> None:
    found = groups(CHECKPOINTS, "retrieval")
    assert [group.title.rpartition(" · ")[2] for group in found] == [
        "weights aaaaaaaaaaaa",
        "weights bbbbbbbbbbbb",
    ]
    page = results(CHECKPOINTS)
    for study in page.studies:
        (at,) = task_rows(study, page)
        assert page.rows[at]["provenance"]["fingerprint"] == study.identity["fingerprint"]


def test_a_cell_that_never_loaded_its_model_stands_with_each_checkpoint() -> None:
    failed = memory_row("int4-head", 1024) | {"status": "failed", "reason": "out of memory", "memory": None}
    found = studies([*CHECKPOINTS, failed])
    assert [len(study.frame) for study in found] == [2, 2]
    (alone,) = studies([*of(), failed])
    assert len(alone.frame) == 2


def test_numbers_without_a_fingerprint_are_not_put_with_either_checkpoint() -> None:
    older = quality_row("int4-head", 512, values={"kl_mean": 0.003})
    assert sorted(study.records()[0]["kl_mean"] for study in studies([*CHECKPOINTS, older])) == [
        0.001,
        0.002,
        0.003,
    ]


def test_the_page_tells_rows_of_two_dtypes_apart_in_every_table() -> None:
    page = results(DTYPES)
    for grid in grids(page):
        lines = {tuple(cell.text for cell in line.cells) for line in grid.lines}
        assert len(lines) == 2, grid.kind
        assert {line.model.rpartition(" · ")[2] for line in grid.lines} == {"float32", "bfloat16"}
    bad = [*of("float32", kl=0.5), *of("bfloat16", NEW, kl=0.6)]
    places = [place for alert in alerts(results(bad)) if alert.level == "damaged" for place in alert.where]
    assert len(places) == 2 and all("float" in place for place in places)


def test_a_hash_is_told_only_where_nothing_else_tells_two_things_apart() -> None:
    found = [
        {"model": "m", "dtype": "float32", "fingerprint": OLD},
        {"model": "m", "dtype": "bfloat16", "fingerprint": NEW},
        {"model": "m", "dtype": "bfloat16", "fingerprint": "c" * 64},
    ]
    assert titles(found) == [
        "m · float32",
        "m · bfloat16 · weights bbbbbbbbbbbb",
        "m · bfloat16 · weights cccccccccccc",
    ]
    assert titles(found[:2]) == ["m · float32", "m · bfloat16"]
    assert titles(found[:1] * 2) == ["m", "m"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, row in enumerate(DTYPES):
        (tmp_path / f"{row['kind']}-int4-head-c512-{number:012d}.json").write_text(json.dumps(row))
    return tmp_path


def test_results_lists_what_differs(folder: Path) -> None:
    said = CliRunner().invoke(app, ["results", str(folder)]).output
    head, *lines = said.splitlines()
    assert "dtype" in head.split() and "fingerprint" not in head and "seed" not in head
    assert sum("bfloat16" in line for line in lines) == sum("float32" in line for line in lines) == 4
    one = CliRunner().invoke(app, ["results", str(folder), "--kind", "memory", "--model", "none"]).output
    assert "dtype" not in one
    assert differing(CHECKPOINTS) == ["fingerprint"] and differing(TEXTS) == ["text"]
    assert differing(of()) == []


def test_compare_shows_what_differs_in_its_table_and_its_lines() -> None:
    rows = [row for row in DTYPES if row["kind"] == "memory"]
    theirs = [row | {"memory": row["memory"] | {"held_bytes": 9}} for row in rows]
    alone = [*rows, *(row | {"requested": row["requested"] | {"context": 99}} for row in rows)]
    out = io.StringIO()
    for part in comparison_lines(compare(alone, theirs)):
        Console(file=out, width=250).print(part)
    head = next(line for line in out.getvalue().splitlines() if line.startswith("kind"))
    assert "dtype" in head.split()
    (only,) = (line for line in out.getvalue().splitlines() if line.startswith("only in A"))
    assert "float32" in only and "bfloat16" in only
