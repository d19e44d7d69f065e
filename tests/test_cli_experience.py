"""What the command line is like to use: quick help, completion, JSON, exit codes, terminals of all kinds."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import quality_row, sweep_rows
from typer.main import get_command
from typer.testing import CliRunner, Result

from quantkv.commands.arguments import MODELS
from quantkv.commands.cli import EXITS, app
from quantkv.named import NAMES
from quantkv.rows.files import write_row

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "pandas", "matplotlib")


def command(*arguments: Any) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "100", "NO_COLOR": "1"})


def python(code: str, **variables: str) -> str:
    """What a program prints in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    options: dict[str, Any] = {"capture_output": True, "text": True, "env": environment, "check": True}
    return subprocess.run([sys.executable, "-c", code], **options).stdout


def command_lines() -> list[list[str]]:
    """Every command, those of groups too."""
    top = get_command(app).commands  # type: ignore[attr-defined]
    inner = [[name, below] for name, one in top.items() for below in getattr(one, "commands", {})]
    return [[], *([name] for name in top), *inner]


def test_no_help_imports_what_costs_time() -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from quantkv.commands.cli import app
for line in {command_lines()!r}:
    result = CliRunner().invoke(app, [*line, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output, result.output
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    print(*line, "imports", heavy) if heavy else None
"""
    assert ["watch"] in command_lines() and ["bench", "decode"] in command_lines()
    assert python(code) == ""


def complete(words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    code = "from quantkv.commands.cli import app; app(prog_name='quantkv')"
    count = str(len(words.split(" ")) - 1)
    variables = {"_QUANTKV_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    return python(
        f"import sys\ntry:\n  {code}\nfinally:\n  assert 'torch' not in sys.modules", **variables
    ).split()


@pytest.mark.parametrize("line", ["check random-llama --format", "describe random-llama -f", "inspect m -f"])
def test_formats_complete(line: str) -> None:
    assert complete(f"quantkv {line} kivi") == ["kivi-4", "kivi-2"]


def test_models_and_commands_complete() -> None:
    assert complete("quantkv plan smol") == ["smollm2-135m-instruct-q4_1"]
    assert complete("quantkv comp") == ["compare"]


def test_the_completed_names_are_all_there_are() -> None:
    from quantkv.models import RANDOM_MODELS
    from quantkv.models.packaged import PACKAGED_MODELS
    from quantkv.spec import presets

    assert list(NAMES) == list(presets())
    assert list(MODELS) == [*PACKAGED_MODELS, *RANDOM_MODELS]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_can_be_shown(shell: str) -> None:
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = f"from quantkv.commands.cli import app; app(['--show-completion', '{shell}'], prog_name='quantkv')"
    assert "_QUANTKV_COMPLETE=complete_" in python(code, **variables)


def test_exit_codes_are_told_by_the_help_and_by_the_docs() -> None:
    help_text = " ".join(re.sub(r"[│\n]", " ", command("--help").output).split())
    page = (ROOT / "docs" / "cli.md").read_text()
    for code, words in EXITS.items():
        assert f"{code} {words}" in help_text
        assert f"| {code} | {words} |" in page


def test_every_code_a_command_ends_with_is_in_the_list() -> None:
    from quantkv.comparison.outcome import EXIT_FAILED, EXIT_WORSE
    from quantkv.instruments.verdict import Verdict
    from quantkv.sweep.summary import Summary

    failed, stopped = Summary(Path(), counts={"ok": 0, "failed": 1}), Summary(Path(), interrupted=True)
    known = {EXIT_WORSE, EXIT_FAILED, failed.exit_code, stopped.exit_code}
    assert known | {verdict.exit_code for verdict in Verdict} <= set(EXITS)


def test_formats_in_json() -> None:
    told = json.loads(command("formats", "--json").stdout)["formats"]
    by_name = {record["name"]: record for record in told}
    assert list(by_name) == list(NAMES)
    assert by_name["int4-head"]["bits_packed"] == 4.5  # 4 bits, and 32 of scale and zero over 64 channels
    kivi = by_name["kivi-2"]
    assert (kivi["keys_recent"], kivi["keys_flush"], kivi["values_recent"], kivi["values_flush"]) == (
        *(0, 128),
        *(128, 1),
    )


def test_describe_in_json() -> None:
    """Two layers of two heads of 32 channels: 300 tokens of keys and values at 16 bits."""
    told = json.loads(command("describe", "random-llama", "-f", "fp16", "--context", "300", "--json").stdout)
    assert told["bytes_16bit"] == 2 * 2 * 2 * 32 * 300 * 2
    assert told["cache_bytes"] == sum(layer["nbytes"] for layer in told["layers"])
    assert (told["format"], told["layers_quantized"], len(told["layers"])) == ("fp16", 2, 2)


@pytest.mark.long("draws every figure")
def test_report_in_json_holds_the_table_and_the_files(tmp_path: Path) -> None:
    for row in sweep_rows((512,), ("int4-head",)):
        write_row(row | {"key": f"{row['kind']}-{row['requested']['format']}"}, tmp_path)
    result = command("report", tmp_path, "--no-html", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    (record,) = [line for line in told["table"] if line["format"] == "int4-head"]
    assert record["kl_mean"] == pytest.approx(5.8e-3) and told["problems"] == []
    assert told["files"] and all(Path(name).is_file() for name in told["files"])


CONFIG = """
schema: 1
models: [random-llama]
formats: [int8-head]
contexts: [128]
policy: {recent: 16}
quality: {protocol: {score: 32, windows: 2}}
report: {figures: [kl], files: [png], tables: [csv], html: false}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(CONFIG)
    return path


def test_a_dry_run_in_json(tmp_path: Path, config: Path) -> None:
    told = json.loads(command("sweep", config, "--out", tmp_path / "r", "--dry-run", "--json").stdout)
    (cell,) = told["cells"]
    assert (cell["kind"], cell["format"], cell["context"], cell["finished"]) == (
        "quality",
        "int8-head",
        128,
        False,
    )
    assert cell["cache_bytes"] > 0 and told["no_estimate_for"] == ["quality"]


@pytest.mark.usefixtures("in_process")
def test_a_sweep_in_json_keeps_its_progress_to_itself(tmp_path: Path, config: Path) -> None:
    out = tmp_path / "r"
    result = command("sweep", config, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["measured"] == {"ok": 1, "failed": 0, "skipped": 0} and told["exit_code"] == 0
    assert str(out / "report" / "table.csv") in told["files"]
    assert "[1/1] quality" in result.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("in_process")
def test_a_report_with_the_sweeps_file_is_the_sweeps_report(tmp_path: Path, config: Path) -> None:
    """Same files, same bytes, though rows of another sweep lie there too; a page if asked for."""
    out = tmp_path / "r"
    assert command("sweep", config, "--out", out).exit_code == 0
    for row in sweep_rows((512,), ("int4-head",)):
        write_row(row | {"key": f"{row['kind']}-{row['requested']['format']}"}, out)
    by_sweep = files_of(out / "report")
    assert set(by_sweep) == {"kl.png", "table.csv"}
    again = command("report", out, "--config", config, "--out", tmp_path / "again")
    assert again.exit_code == 0, again.output
    assert files_of(tmp_path / "again") == by_sweep
    paged = command("report", out, "--config", config, "--html", "--out", tmp_path / "paged")
    assert paged.exit_code == 0 and "report.html" in files_of(tmp_path / "paged")


def test_a_report_of_a_sweep_that_has_no_row_there(tmp_path: Path, config: Path) -> None:
    for row in sweep_rows((512,), ("int4-head",)):
        write_row(row | {"key": f"{row['kind']}-{row['requested']['format']}"}, tmp_path)
    result = command("report", tmp_path, "--config", config)
    assert result.exit_code == 2 and "without --config, every row there is reported" in result.stderr
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ([], "results/main --config configs/main.yaml"),
        (["CONFIG=mine.yaml", "OUT=results/mine"], "results/mine --config mine.yaml"),
        (["OUT=results/mine"], "results/mine "),
    ],
)
def test_make_report_hands_over_the_sweeps_file(given: list[str], run: str) -> None:
    line = ["make", "-n", "-o", ".venv/.ready", "report", *given]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"quantkv report {run}" in done.stdout
    assert ("--config" in done.stdout) == ("--config" in run)


def test_inspect_refuses_a_file_for_a_folder_before_it_looks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = CliRunner().invoke(app, ["inspect", "random-llama", "--out", str(tmp_path / "file")])
    assert done.exit_code == 2 and "is a file: name a folder" in done.output


def test_inspect_in_json(tmp_path: Path) -> None:
    given = ["--context", "192", "--queries", "8", "--windows", "0", "--out", tmp_path / "i", "--json"]
    result = command("inspect", "random-llama", "-f", "int4-head", *given)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [record["format"] for record in told["damage"]] == ["int4-head"]
    assert {record["layer"] for record in told["errors"]} == {0, 1}
    assert all(Path(name).is_file() for name in told["files"])


def on_a_terminal(kind: str, *arguments: Any) -> tuple[int, str]:
    """Exit code and all that a terminal of this kind receives."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": kind, "CI": ""}
    line = [sys.executable, "-m", "quantkv.commands.cli", *map(str, arguments)]
    with subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        pieces = []
        while piece := _read(ours):
            pieces.append(piece)
    os.close(ours)
    return process.returncode, b"".join(pieces).decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # what Linux says when the other end is closed
        return b""


def is_plain(text: str) -> bool:
    return all(character.isprintable() or character in "\r\n" for character in text)


@pytest.mark.slow
def test_a_sweep_on_a_dumb_terminal_prints_plain_lines(tmp_path: Path, config: Path) -> None:
    code, text = on_a_terminal("dumb", "sweep", config, "--out", tmp_path / "r")
    assert code == 0 and is_plain(text), text
    assert "[0/1] quality  context 128  int8-head" in text and "1 cells measured" in text


@pytest.mark.long("starts commands")
def test_tables_on_a_dumb_terminal_are_whole() -> None:
    code, text = on_a_terminal("dumb", "formats")
    assert code == 0 and is_plain(text)
    assert "…" not in text and "channel (32 tokens) / token (32 channels)" in text


@pytest.mark.long("starts a command")
def test_output_that_is_no_terminal_is_plain(tmp_path: Path) -> None:
    write_row(quality_row("int4-head", 512) | {"key": "a" * 64}, tmp_path)
    line = [sys.executable, "-m", "quantkv.commands.cli", "watch", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout == "1 finished, nobody is at work\n" and done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["sweeep"], "Did you mean 'sweep'"),
        (["describe", "random-llama", "-f", "int4-haed"], "did you mean int4-head"),
        (["describe", "random-lama", "-f", "int4-head"], "legal names: random-llama"),
        (["check", "random-llama", "-f", "int8-head", "--text", "none"], "legal: python-docs"),
        (["check", "random-llama"], "--help"),
    ],
)
def test_a_mistake_is_answered_with_a_hint(arguments: list[str], hint: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert hint in result.stderr.replace("'int4-head'", "int4-head")
