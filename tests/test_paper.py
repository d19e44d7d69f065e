"""`quantkv paper`: the same rows give the same bytes, in another process too; what is left out is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import MODEL, quality_row, sweep_rows
from typer.testing import CliRunner

from quantkv.commands.cli import app
from quantkv.commands.paper_files import settings_of, write_paper
from quantkv.errors import QuantKVError
from quantkv.report.pictures import inspections_in
from quantkv.report.write import write_report
from quantkv.rows.files import read_rows

FACTS = {
    "model": MODEL,
    "weights": "4-bit GGUF (Q4_1)",
    "dtype": "float32",
    "text": "python-docs",
    "text_sha256": "71f2ff5d99bdc1f9" + "0" * 48,
    "context": 1024,
    "queries": 64,
}
SHIPPED = sorted(path.parent for path in (Path(__file__).parents[1] / "experiments").rglob("rows"))
SETTINGS = "figures: [pareto, crossover, overview, retrieval, layers]\nfiles: [png, pdf, svg]\n"


def retrieval_row(format: str, context: int) -> dict[str, Any]:
    row = quality_row(format, context)
    depths = [{"depth": depth, "n": 8, "hits": 5, "hits_ref": 7} for depth in (0.1, 0.5, 0.9)]
    scores = {"n": 24, "depths": depths, "conclusive": True, "verdict": "no worse", "p_value": 0.5}
    scores |= {f"exact_match{name}": 0.6 for name in ("", "_low", "_high", "_ref", "_ref_low", "_ref_high")}
    scores |= {f"delta_log_prob{name}": 0.1 for name in ("", "_low", "_high")} | {"packed_read_fraction": 0.9}
    protocol = {"task": "passkey", "text": "python-docs", "samples": 8, "depths": [0.1, 0.5, 0.9], "tail": 96}
    return row | {"kind": "retrieval", "quality": None, "retrieval": scores, "protocol": protocol}


def study(folder: Path, rows: list[dict[str, Any]], settings: str = "") -> Path:
    (folder / "rows").mkdir(parents=True)
    for index, row in enumerate(rows):
        (folder / "rows" / f"{row['kind']}-{index}.json").write_text(json.dumps(row))
    if settings:
        (folder / "paper.yaml").write_text(settings)
    return folder


def inspection(folder: Path) -> None:
    folder.mkdir()
    (folder / "inspection.json").write_text(json.dumps(FACTS))
    lines = [f"int4-head,{layer},{head},0.1,0.1,0.0{layer + 1}" for layer in range(4) for head in range(3)]
    names = "format,layer,head,key_error,value_error,output_error"
    (folder / "errors.csv").write_text("\n".join([names, *lines]))


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies, one with all kinds of rows and an inspection."""
    folder = tmp_path_factory.mktemp("studies")
    retrieval = [
        retrieval_row(format, context) for format in ("int4-head", "kivi-2") for context in (512, 1024)
    ]
    full = study(folder / "full", [*sweep_rows(contexts=(512, 2048)), *retrieval], SETTINGS)
    inspection(full / "inspection")
    study(
        folder / "small",
        [quality_row("int4-head", 512)],
        "figures: [kl, memory]\nfiles: [pdf]\ntables: [tex]\n",
    )
    return folder


def made(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "paper" in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_two_processes_make_the_same_bytes(studies: Path) -> None:
    found = []
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-m", "quantkv.commands.cli", "paper", str(studies)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        found.append(made(studies))
    figures = ("pareto", "crossover", "overview", "retrieval", "layers")
    assert {f"full/paper/{name}.{kind}" for name in figures for kind in ("png", "pdf", "svg")} <= set(
        found[0]
    )
    assert {f"{name}/paper/table.tex" for name in ("full", "small")} <= set(found[0])
    assert found[0].keys() == found[1].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []
    _check_fonts_and_dates(found[0])


def _check_fonts_and_dates(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        assert not re.search(rb"CreationDate|ModDate|Software|<dc:date>", content), name
        if name.endswith(".pdf"):
            assert b"/Type3" not in content and b"/FontFile2" in content, name


def test_captions_say_model_weights_text_and_protocol(studies: Path, tmp_path: Path) -> None:
    write_paper(studies)
    text = (studies / "full" / "paper" / "figures.tex").read_text()
    captions = dict(re.findall(r"includegraphics\[[^]]*\]\{(\w+)\.pdf\}\n\\caption\{(.*)\}\n", text))
    assert set(captions) == {"pareto", "crossover", "overview", "retrieval", "layers"}
    assert all("q4\\_1 (weights 4-bit" in said for said in captions.values())
    assert "16 windows of 128 scored tokens" in captions["pareto"] and "9f2c41d07be6" in captions["pareto"]
    assert "2 threads" in captions["crossover"] and "Xeon" in captions["crossover"]
    assert "64 queries over 1024 cached tokens of python-docs (sha256 71f2ff5d99bd)" in captions["layers"]
    assert "8 questions at each depth of 0.1, 0.5, 0.9" in captions["retrieval"]
    assert "Xeon" in captions["retrieval"]


def test_the_command_tells_what_it_wrote_and_what_it_could_not_draw(studies: Path) -> None:
    result = CliRunner().invoke(app, ["paper", str(studies / "small")])
    folder = studies / "small"
    lines = result.output.replace("\n", " ")
    assert result.exit_code == 0
    assert f"{folder}: not drawn, for lack of numbers: memory" in lines
    assert str(folder / "paper" / "kl.pdf") in lines


def test_the_files_in_json_and_what_was_not_drawn_apart(studies: Path) -> None:
    result = CliRunner().invoke(app, ["paper", str(studies / "small"), "--json"])
    folder = studies / "small" / "paper"
    names = ("table.tex", "figures.tex", "kl.pdf")
    assert json.loads(result.stdout) == {"files": [str(folder / name) for name in names]}
    assert "not drawn, for lack of numbers: memory" in result.stderr


def test_a_study_without_settings_makes_everything_but_the_page(tmp_path: Path) -> None:
    assert settings_of(tmp_path).figures[0] == "pareto" and "layers" in settings_of(tmp_path).figures
    assert settings_of(tmp_path).html is False


def test_an_inspection_of_no_format_draws_nothing(tmp_path: Path) -> None:
    place = study(tmp_path, [quality_row("int4-head", 512)], "figures: [kl, layers]\nfiles: [svg]\n")
    inspection(place / "inspection")
    (place / "inspection" / "errors.csv").write_text("\n")
    told: list[str] = []
    write_paper(tmp_path, tell=told.append)
    assert told == [f"{tmp_path}: not drawn, for lack of numbers: layers"]
    assert inspections_in(tmp_path / "rows") == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("figures: [kll]\n", r"paper\.yaml: figures\.0: .*kl"),
        ("figure: [kl]\n", r"paper\.yaml: figure: .*figures"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: str, problem: str) -> None:
    study(tmp_path, [quality_row("int4-head", 512)], settings)
    with pytest.raises(QuantKVError, match=problem):
        write_paper(tmp_path)


@pytest.mark.parametrize("place", SHIPPED, ids=lambda place: place.name)
def test_shipped_tables_say_what_the_shipped_rows_say(place: Path, tmp_path: Path) -> None:
    """Where this fails, rows or words have changed since: ``make paper`` brings the files up to date."""
    tables = [kind for kind in settings_of(place).tables if kind != "md"]  # that one shows the figures too
    written = write_report(read_rows(place / "rows"), tmp_path, figures=[], tables=tables, html=False)
    assert written
    for path in written:
        assert path.read_text() == (place / "paper" / path.name).read_text(), path.name


def test_an_empty_study_and_a_damaged_one_cost_no_other(tmp_path: Path) -> None:
    for name in ("a", "c"):
        study(
            tmp_path / name, [quality_row("int4-head", 512)], "figures: [kl]\nfiles: [svg]\ntables: [csv]\n"
        )
    (tmp_path / "b" / "rows").mkdir(parents=True)
    (tmp_path / "a" / "rows" / "speed-cut.json").write_text('{"schema": 1, "kind"')
    result = CliRunner().invoke(app, ["paper", str(tmp_path), "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {
        "files": [str(tmp_path / "c" / "paper" / name) for name in ("table.csv", "kl.svg")]
    }
    said = result.stderr.replace("\n", "")
    assert f"{tmp_path / 'b'}: no rows in rows/" in said and f"{tmp_path / 'a'}: speed-cut.json" in said


def test_no_study_and_a_damaged_row_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty" / "rows").mkdir(parents=True)
    with pytest.raises(QuantKVError, match="no study in"):
        write_paper(tmp_path)
    place = study(tmp_path, [quality_row("int4-head", 512)])
    (place / "rows" / "speed-cut.json").write_text('{"schema": 1, "kind"')
    with pytest.raises(QuantKVError, match=r"speed-cut\.json"):
        write_paper(tmp_path)
    assert not (place / "paper").exists()
