"""A kind of measurement from a file of one's own: one folder measures it in a sweep, and its rows reach every
table, the page and the commands."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import blocks
from rich.console import Console
from rows import quality_row
from typer.testing import CliRunner

from quantkv import compare, load_results, plugins
from quantkv.commands.cli import app
from quantkv.plugins import import_file
from quantkv.report.html import page
from quantkv.report.terminal import terminal_table
from quantkv.report.write import write_report
from quantkv.rows.files import read_rows, write_row
from quantkv.rows.kinds import REGISTERED
from quantkv.rows.row import build_row
from quantkv.sweep.config import Report, load_config
from quantkv.sweep.grid import expand

ROOT = Path(__file__).parent.parent
PAGE = "docs/adding-a-kind.md"
MOST_LINES = 80
KIND = """
from quantkv.measurements.kind import Kind
from quantkv.rows.axes import KindSettings
from quantkv.rows.kinds import register_kind


class Echo(Kind):
    name = "echo"
    part = "voice"
    metrics = ("echoed", "echo_ms", "kl_mean", "kl_low", "kl_high")
    settings, open = KindSettings, None
    figures = {"echoes": "Echoes by format."}

    def picture(self, name, group):
        from quantkv.drawing.figure import blank

        figure = blank("one-column", 2.0)
        figure.subplots().bar(group.formats, [row["echo"]["echoed"] for row in group.rows])
        return figure


register_kind(Echo())
"""
BODY = ["| low | 64 | int4-head | 7 | 1.50 | 0.020 [0.010, 0.040] |", "| low | 64 | kivi-2 | 9 | 2.00 | — |"]


@pytest.fixture(autouse=True)
def _own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Known in this test alone, as by `quantkv --import echo.py`."""
    monkeypatch.setattr(REGISTERED, "known", dict(REGISTERED.known))
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    (tmp_path / "echo.py").write_text(KIND)
    import_file(tmp_path / "echo.py")
    yield


def echo_row(format: str, **values: Any) -> dict[str, Any]:
    asked = {"model": "random-llama", "revision": None, "dtype": "float32", "attn": "quantkv"}
    asked |= {"format": format, "spec": format, "context": 64, "batch": 1, "seed": 0}
    protocol, made = {"voice": "low", "rounds": 3}, {"metrics": {"echo": 1}, "codecs": 2}
    return build_row("echo", asked, {"notes": []}, protocol, values, made, key=f"{format:0<64}")


def folder_of(place: Path, echoed: int = 7) -> Path:
    first = echo_row("int4-head", echoed=echoed, echo_ms=1.5, kl_mean=0.02, kl_low=0.01, kl_high=0.04)
    for row in (first, echo_row("kivi-2", echoed=9, echo_ms=2.0), quality_row("int4-head", 64)):
        write_row(row | {"key": row["key"] or "f" * 64}, place)
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    return folder_of(tmp_path / "rows")


def run(*arguments: object) -> str:
    words = list(map(str, arguments))
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"}, catch_exceptions=False)
    return result.output


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page prints: a kind in a file, and a sweep that names it."""
    folder = tmp_path / "example"
    folder.mkdir()
    for block, name in zip(blocks(ROOT, PAGE), ("agreement.py", "sweep.yaml")):
        (folder / name).write_text(block.text)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.long("a sweep, with a worker that loads transformers")
def test_a_kind_is_a_folder_of_few_lines_and_reaches_everything(example: Path) -> None:
    assert sum(len(file.read_text().splitlines()) for file in example.iterdir()) <= MOST_LINES
    assert "2 cells measured" in run("sweep", "sweep.yaml", "--out", "rows")
    rows = read_rows(example / "rows")
    assert {(row["kind"], row["requested"]["format"], row["status"]) for row in rows} == {
        ("agreement", "int4-head", "ok"),
        ("agreement", "kivi-2", "ok"),
    }
    report, shares = example / "rows" / "report", [row["agreement"]["agreement"] for row in rows]
    assert all(0 < share <= 1 for share in shares)
    digest = hashlib.sha256((example / "agreement.py").read_bytes()).hexdigest()
    assert {json.dumps(row["provenance"]["rules"]) for row in rows} == {
        json.dumps({"kind agreement": f"agreement.py {digest}"})
    }
    assert all(row["provenance"]["keyed"][-1]["rules"] == {"kind agreement": digest} for row in rows)
    assert "| context | format | agreement (%) |" in (report / "agreement.md").read_text()
    assert r"256 & int4-head & " in (report / "agreement.tex").read_text()
    assert ",agreement," in (report / "agreement.csv").read_text()
    assert "2 agreement" in (report / "report.html").read_text()
    assert "2 rows, 2 ok" in run("results", "rows", "--kind", "agreement")
    assert "agreement.md" in run("report", "rows", "--config", "sweep.yaml")
    between = run("compare", "rows", "-f", "int4-head", "-f", "kivi-2")
    assert "agreement (%)" in between and f" {100 * shares[0]:.3g}" in between, "in the unit of the table"
    shutil.copytree("rows", "again")
    assert "2 pairs of rows: 2 same" in run("compare", "rows", "again")


def test_a_package_offers_a_kind(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = example / "agreement-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agreement\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[quantkv.kinds]\nagreement = agreement\n")
    monkeypatch.syspath_prepend(str(example))
    monkeypatch.setattr(REGISTERED, "_asked", False)
    (example / "sweep.yaml").write_text(
        (example / "sweep.yaml").read_text().replace("import: agreement.py\n", "")
    )
    sweep = load_config("sweep.yaml")
    monkeypatch.delitem(sys.modules, "agreement")
    assert REGISTERED.origin("agreement").name == "package agreement"
    assert [(cell.kind, cell.label) for cell in expand(sweep)] == [
        ("agreement", "int4-head"),
        ("agreement", "kivi-2"),
    ]


def test_its_table_has_its_numbers_by_name_in_every_form(folder: Path) -> None:
    write_report(folder, figures=(), html=False)
    text = (folder / "report" / "echo.md").read_text()
    assert "| voice | context | format | echoed | echo (ms) | KL (nats/token) |" in text
    assert all(line in text for line in BODY)
    assert "random-llama (computed in float32): rounds 3." in text
    tex = (folder / "report" / "echo.tex").read_text()
    assert r"low & 64 & int4-head & 7 & 1.50 & 0.020 [0.010, 0.040] \\" in tex
    header, *lines = (folder / "report" / "echo.csv").read_text().splitlines()
    assert {"voice", "echoed", "echo_ms", "kl_low"} <= set(header.split(",")) and len(lines) == 2


def test_its_figure_can_be_asked_for_and_says_what_it_shows(folder: Path) -> None:
    asked = Report(figures=["echoes"]).figures
    written = write_report(folder, figures=asked, files=["svg"], html=False)
    assert folder / "report" / "echoes.svg" in written
    assert r"\caption{Echoes by format. random-llama" in (folder / "report" / "figures.tex").read_text()


def test_the_terminal_and_the_page_show_it(folder: Path) -> None:
    file = io.StringIO()
    terminal_table(read_rows(folder), Console(file=file, width=200))
    assert "random-llama, echo" in file.getvalue() and "0.020 [0.010, 0.040]" in file.getvalue()
    made = page(read_rows(folder))
    assert "2 echo" in made and "0.020 [0.010, 0.040]" in made and "echoed" in made


def test_results_lists_filters_and_counts_it(folder: Path) -> None:
    assert "3 rows, 3 ok" in run("results", folder)
    assert "2 rows, 2 ok" in run("results", folder, "--kind", "echo")
    assert "is not one of quality, speed, memory, retrieval, generation, echo" in run(
        "results", folder, "--kind", "ecco"
    )


def test_its_numbers_are_columns_of_a_frame(folder: Path) -> None:
    frame = load_results(folder)
    assert sorted(frame.loc[frame["kind"] == "echo", "echoed"]) == [7, 9]


def test_compare_shows_what_changed_and_judges_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    found = compare(folder, folder_of(tmp_path / "later", echoed=8))
    changes = [change for pair in found.pairs for change in pair.changes if change.verdict != "same"]
    assert [change.metric for change in changes] == ["echoed", "echo_ms", "kl_mean"]
    assert (changes[0].a, changes[0].b, changes[0].change) == (7, 8, 1)
    assert {change.verdict for change in changes} == {"not judged"} and found.exit_code == 0


def test_rows_of_a_kind_that_nobody_knows_are_left_out_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTERED, "known", {})
    said: list[str] = []
    assert [row["kind"] for row in read_rows(folder, warn=said.append)] == ["quality"]
    assert len(said) == 2 and all("'echo'" in line and "--import FILE" in line for line in said)
    told = run("report", folder, "--json", "--no-html")
    assert "'echo'" in told and json.loads(told[told.index("{") : told.rindex("}") + 1])["rows"] == 1
