"""The report folder: which files, from a folder or from rows, and what is said when something is missing."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rows import failed_row, quality_row, sweep_rows

from quantkv.errors import QuantKVError
from quantkv.report.figures import of_studies, panels, titles
from quantkv.report.write import write_report
from quantkv.sweep.config import Report

FIGURES = (
    "pareto", "memory", "decode_ms", "decode_tps", "crossover", "ppl_ratio", "kl", "kl_by_position",
    "overview", "retrieval", "layers",
)  # fmt: skip
DRAWABLE = of_studies()


def names(paths: list[Path]) -> set[str]:
    assert all(path.stat().st_size > 0 for path in paths)
    return {path.name for path in paths}


@pytest.mark.long("draws every figure")
def test_everything_by_default(tmp_path: Path) -> None:
    written = names(write_report(sweep_rows(), tmp_path))
    figures = {f"{name}.{kind}" for name in DRAWABLE for kind in ("png", "pdf")}
    assert written == figures | {"table.md", "table.tex", "figures.tex", "table.csv", "report.html"}
    assert len(pd.read_csv(tmp_path / "table.csv")) == 3 * 8


def test_only_what_was_asked_for(tmp_path: Path) -> None:
    written = write_report(
        sweep_rows(),
        tmp_path,
        figures=["kl", "decode_tokens_per_s"],
        files=["svg"],
        tables=["csv"],
        html=False,
    )
    assert names(written) == {"kl.svg", "decode_tps.svg", "table.csv"}
    assert names(write_report(sweep_rows(), tmp_path, figures=[], tables=["md"], html=False)) == {"table.md"}


def test_a_results_folder_reports_into_itself(tmp_path: Path) -> None:
    rows = sweep_rows(contexts=(512,), formats=("fp16", "int4-head"))
    for index, row in enumerate(rows):
        (tmp_path / f"{row['kind']}-{index}.json").write_text(json.dumps(row))
    written = write_report(tmp_path, figures=["memory"], files=["png"], tables=["csv"], html=False)
    assert written == [tmp_path / "report" / "table.csv", tmp_path / "report" / "memory.png"]
    assert write_report(tmp_path, figures=["memory"], files=["png"], tables=["csv"], html=False) == written


@pytest.mark.long("draws reports one after the other")
def test_figures_of_an_earlier_report_do_not_stay_beside_the_new_ones(tmp_path: Path) -> None:
    """A second model renames the figures; what the user has put there stays."""
    one = sweep_rows(contexts=(512,), formats=("int4-head",))
    options: dict = {"figures": ["kl", "memory"], "files": ["png", "pdf"], "html": False}
    write_report(one, tmp_path, **options)
    (tmp_path / "memory-notes.png").write_text("mine")
    (tmp_path / "pareto.png").write_text("mine")
    told: list[str] = []
    two = [*one, *sweep_rows(contexts=(512,), formats=("int4-head",), model="other")]
    written = names(write_report(two, tmp_path, **options, tell=told.append))
    assert {path.name for path in tmp_path.iterdir()} == written | {"memory-notes.png", "pareto.png"}
    assert told == ["removed, of an earlier report: kl.pdf, kl.png, memory.pdf, memory.png"]
    write_report(two, tmp_path, **options | {"files": ["svg"], "figures": ["kl"]})
    assert {path.name for path in tmp_path.glob("kl*")} == {
        f"kl-{model}-float32-b1.svg" for model in ("other", "smollm2-135m-instruct-q4-1")
    }
    assert not list(tmp_path.glob("memory-*32*"))


def test_a_report_without_tables_that_show_figures_removes_none(tmp_path: Path) -> None:
    rows = [quality_row("int4-head", 512)]
    write_report(rows, tmp_path, figures=["kl", "pareto"], files=["svg"], html=False)
    write_report(rows, tmp_path, figures=["kl"], files=["svg"], tables=["csv"], html=False)
    assert (tmp_path / "pareto.svg").exists()


def test_several_models_get_a_figure_each_and_a_section_each(tmp_path: Path) -> None:
    rows = [
        *sweep_rows(contexts=(512,)),
        *sweep_rows(contexts=(512,), model="org/Other_7B", dtype="bfloat16"),
    ]
    written = names(write_report(rows, tmp_path, figures=["kl"], files=["png"], tables=["md"]))
    assert written == {
        "kl-smollm2-135m-instruct-q4-1-float32-b1.png",
        "kl-other-7b-bfloat16-b1.png",
        "table.md",
        "report.html",
    }
    text = (tmp_path / "table.md").read_text()
    assert text.count("\n| context |") == 2
    assert "## org/Other\\_7B" in text


def test_markdown_shows_figures_and_says_what_could_not_be_drawn(tmp_path: Path) -> None:
    rows = [quality_row("int4-head", 512), failed_row("speed", "int4-head", 512, "killed")]
    write_report(rows, tmp_path, figures=["kl", "memory", "decode_ms"])
    text = (tmp_path / "table.md").read_text()
    assert "](kl.png)" in text
    assert "Not drawn, for lack of numbers: memory, decode_ms." in text
    assert not (tmp_path / "memory.png").exists()


def test_figures_that_nothing_was_measured_for_are_skipped_with_one_line(tmp_path: Path) -> None:
    rows = [quality_row("int4-head", 512)]
    told: list[str] = []
    wanted = ["kl", "memory", "crossover", "retrieval", "layers"]
    written = write_report(
        rows, tmp_path, figures=wanted, files=["svg"], tables=["csv"], html=False, tell=told.append
    )
    assert names(written) == {"table.csv", "kl.svg"}
    assert told == ["not drawn, for lack of numbers: memory, crossover, retrieval, layers"]
    told.clear()
    write_report(rows, tmp_path, figures=["kl"], files=["svg"], tables=[], html=False, tell=told.append)
    assert not told


def test_latex_figures_have_captions_of_their_own_kind(tmp_path: Path) -> None:
    write_report(sweep_rows(contexts=(512,)), tmp_path, figures=["kl", "overview"], files=["pdf"])
    text = (tmp_path / "figures.tex").read_text()
    kl = text.split(r"\end{figure}")[0]
    assert r"\includegraphics[width=\columnwidth]{kl.pdf}" in kl
    assert r"q4\_1 (weights 4-bit gguf (Q4\_1)" in kl and "prefill exact" in kl and "Speed:" not in kl
    assert r"\includegraphics[width=\textwidth]{overview.pdf}" in text


@pytest.mark.parametrize(
    ("options", "legal"),
    [
        (
            {"figures": ["kll"]},
            ", ".join(titles()),
        ),
        ({"files": ["jpg"]}, "png, pdf, svg"),
        ({"tables": ["xls"]}, "md, tex, csv"),
        ({"width": "a4"}, "one-column, two-column"),
    ],
)
def test_unknown_names_tell_the_legal_ones(tmp_path: Path, options: dict, legal: str) -> None:
    with pytest.raises(QuantKVError, match=legal):
        write_report(sweep_rows(), tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_no_rows_no_folder_and_no_place_to_write_are_errors(tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match="no result rows"):
        write_report([], tmp_path)
    with pytest.raises(QuantKVError, match="out="):
        write_report(sweep_rows())
    (tmp_path / "file").write_text("")
    with pytest.raises(QuantKVError, match=r"cannot write .*table\.csv: Not a directory"):
        write_report(sweep_rows(), tmp_path / "file" / "report", figures=[], tables=["csv"])


def test_a_file_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "kl.png").mkdir()
    options: dict = {"figures": ["kl", "memory"], "files": ["png"], "tables": ["md", "csv"], "html": False}
    problems: list[str] = []
    written = names(write_report(sweep_rows(), tmp_path, **options, warn=problems.append))
    assert written == {"table.md", "table.csv", "memory.png"}
    assert problems == [f"cannot write {tmp_path / 'kl.png'}: Is a directory"]
    with pytest.raises(QuantKVError, match=r"kl\.png: Is a directory"):
        write_report(sweep_rows(), tmp_path, **options)
    assert not list(tmp_path.glob(".*.tmp"))


def test_tables_are_on_disk_before_a_figure_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        if path.suffix == ".png":
            assert (tmp_path / "table.csv").exists() and (tmp_path / "table.tex").exists()
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("quantkv.report.write.write_whole", full)
    problems: list[str] = []
    figures = ["kl", "memory", "pareto"]
    write_report(sweep_rows(contexts=(512,)), tmp_path, figures=figures, files=["png"], warn=problems.append)
    (said,) = problems
    assert said.count("No space left on device") == len(said.splitlines()) == len(figures)


def test_figure_names_titles_and_kinds_agree() -> None:
    assert {*panels(), "overview"} == set(DRAWABLE)
    assert tuple(titles()) == FIGURES == (*DRAWABLE, "retrieval", "layers")
    assert Report(figures=list(FIGURES)).figures == FIGURES
    assert set(Report().figures) < set(FIGURES)


def test_the_package_imports_neither_pandas_nor_matplotlib() -> None:
    code = "import sys, quantkv.report; print(*sorted({'pandas', 'matplotlib'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
