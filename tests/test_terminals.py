"""Terminals that lack characters, readers that go, text that would move the cursor, names that are empty."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure, sweep
from rich.console import Console
from typer.testing import CliRunner

from quantkv.commands.cli import app
from quantkv.errors import QuantKVError
from quantkv.rows.files import read_rows, write_row
from quantkv.sweep.config import validate
from quantkv.sweep.run import run_sweep
from quantkv.wording import streams

HERE = Path(__file__).parent
WILD = "no\x1b[2J room\nleft\x00\x07 \udc80\u202e"
TAME = "noU+001B[2J room leftU+0000U+0007 U+DC80U+202E"


def quantkv(*arguments: object) -> list[str]:
    """The command line that runs the command, with the fake measure for sweeps."""
    code = (
        "import sys; sys.path.insert(0, {0!r}); import fake_measure, quantkv.sweep.process as p\n"
        "p.ProcessMeasure = fake_measure.FakeMeasure\n"
        "from quantkv.commands.cli import app; app({1!r}, prog_name='quantkv')"
    )
    return [sys.executable, "-c", code.format(str(HERE), list(map(str, arguments)))]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_every_character_is_printed_somehow(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    streams.prepare()
    sys.stdout.write("12 × é… Δ ≥ 3 ± 1 ⠹ 値")
    plain = {"ascii": "12 x e... d >= 3 +- 1 * ?", "cp1252": "12 × é… d >= 3 ± 1 * ?"}
    plain |= {"latin-1": "12 × é... d >= 3 ± 1 * ?", "utf-8": "12 × é… Δ ≥ 3 ± 1 ⠹ 値"}
    assert written.getvalue().decode(encoding) == plain[encoding]


@pytest.mark.long("starts a command")
def test_a_plan_on_a_terminal_of_another_time() -> None:
    variables = {"PYTHONIOENCODING": "ascii", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = quantkv("plan", "random-llama", "-f", "int4-head", "--memory", "1GB")
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, check=True)
    assert b"x full attention" in done.stdout and done.stderr == b""


def config(tmp_path: Path) -> Path:
    text = "schema: 1\nmodels: random-llama\nformats: [int8-head, int4-head]\ncontexts: [64, 128]\n"
    file = tmp_path / "sweep.yaml"
    file.write_text(text + "quality: {}\nreport: {figures: kl, files: png, tables: md, html: false}\n")
    return file


@pytest.mark.long("starts a command")
def test_a_sweep_goes_on_when_its_reader_goes(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    command = quantkv("sweep", config(tmp_path), "--out", tmp_path / "r")
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert len(read_rows(tmp_path / "r")) == 4 and (tmp_path / "r" / "report" / "table.md").exists()


# rich, and click; and help, which is printed before a command begins
@pytest.mark.long("starts a command")
@pytest.mark.parametrize(
    "line",
    [
        "formats",
        "--help",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("results --json", "plan --help")),
    ],
)
def test_another_command_ends_with_its_reader(line: str, tmp_path: Path) -> None:
    run_sweep(sweep(tmp_path), measure=FakeMeasure(), console=Console(file=io.StringIO()))
    reading, writing = os.pipe()
    os.close(reading)
    command = quantkv(*line.split(), *([tmp_path] if line.startswith("results") else []))
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("error", [RuntimeError(WILD), QuantKVError(WILD), ArithmeticError(WILD)])
def test_a_reason_cannot_move_the_cursor(tmp_path: Path, error: Exception) -> None:
    def fail(cell: Any) -> None:
        raise error

    log = io.StringIO()
    settings = sweep(tmp_path, speed=None, memory=None, contexts=64, formats="int8-head")
    run_sweep(settings, measure=FakeMeasure(fail), console=Console(file=log, width=60))
    (row,) = read_rows(tmp_path)
    assert row["reason"].endswith(TAME) and TAME in log.getvalue()
    assert all(character.isprintable() or character == "\n" for character in log.getvalue())


def test_a_note_and_a_refusal_cannot_either(tmp_path: Path) -> None:
    measure = FakeMeasure(unsupported="int8-head")
    measure.extra = {"notes": [WILD]}
    log = io.StringIO()
    run_sweep(sweep(tmp_path, contexts=64), measure=measure, console=Console(file=log, width=60))
    assert "note int4-head: noU+001B[2J room" in log.getvalue() and "\x1b" not in log.getvalue()


@pytest.mark.parametrize("arguments", [["results"], ["watch", "--once"]])
def test_nor_can_a_row_that_somebody_else_wrote(tmp_path: Path, arguments: list[str]) -> None:
    run_sweep(sweep(tmp_path, contexts=64), measure=FakeMeasure(), console=Console(file=io.StringIO()))
    row = read_rows(tmp_path)[0]
    write_row({**row, "status": "failed", "reason": WILD, row["kind"]: None}, tmp_path)
    result = CliRunner().invoke(app, [arguments[0], str(tmp_path), *arguments[1:]], env={"COLUMNS": "300"})
    assert result.exit_code == 0 and TAME.replace("U+DC80", r"\udc80") in result.output
    assert all(character.isprintable() or character == "\n" for character in result.output)


def test_nor_can_a_name_or_an_error(tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match="has characters that cannot be shown"):
        validate({"schema": 1, "models": "m", "formats": [{"name": "a\x1b", "spec": "fp16"}], "contexts": 1})
    result = CliRunner().invoke(app, ["results", f"{tmp_path}/\x1b[2J"])
    assert result.exit_code == 2 and "U+001B[2J" in result.stderr and "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "empty"),
    [
        (["sweep", "s.yaml", "--out", ""], "--out"),
        (["sweep", "s.yaml", "--out="], "--out"),
        (["report", "results", "--out", ""], "--out"),
        (["plan", "random-llama", "-f", ""], "-f"),
        (["results", ""], "an argument"),
        (["bench", "decode", ""], "an argument"),
    ],
)
def test_nothing_is_no_folder_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], empty: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path).rename("s.yaml")
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2 and f"{empty} is empty" in result.stderr
    assert os.listdir() == ["s.yaml"]
