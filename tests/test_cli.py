"""The command line: what a user types, reads and gets back as an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from fake_measure import FakeMeasure
from typer.testing import CliRunner, Result

import quantkv.report.write
import quantkv.sweep.process
from quantkv.commands.cli import app

CONFIG = """
schema: 1
models: [random-llama]
formats: [int8-head, int4-head]
contexts: [64, 128]
quality: {protocol: {score: 32, windows: 8}}
memory: {}
"""


def quantkv_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    """The sweep command with instant cells and a report that only says what it was given."""
    measure = FakeMeasure()
    monkeypatch.setattr(quantkv.sweep.process, "ProcessMeasure", lambda: measure)
    monkeypatch.setattr(
        quantkv.report.write, "write_report", lambda rows, out, **options: [Path(out) / "table.md"]
    )
    monkeypatch.setattr(
        "quantkv.report.terminal.terminal_table", lambda rows, console: console.print(f"{len(rows)} rows")
    )
    return measure


def test_help_is_quick_because_it_imports_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from quantkv.commands.cli import app; "
        "result = CliRunner().invoke(app, ['--help']); assert 'sweep' in result.output, result.output; "
        "print([name for name in ('torch', 'transformers', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_package_s() -> None:
    assert quantkv_command("--version").output == f"quantkv {version('quantkv')}\n"


def test_help_quotes_what_a_shell_would_expand() -> None:
    assert "--set 'contexts=[512,1024]'" in quantkv_command("sweep", "--help").output


def test_a_sweep_runs_reports_and_says_where(tmp_path: Path, config: Path, fake: FakeMeasure) -> None:
    out = tmp_path / "results"
    result = quantkv_command("sweep", str(config), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert len(list(out.glob("*.json"))) == len(fake.measured) == 2 * 2 + 3 * 2
    assert "10 rows" in result.output and str(out / "report" / "table.md") in result.output
    assert "10 cells measured" in result.output
    again = quantkv_command("sweep", str(config), "--out", str(out))
    assert "0 cells measured, 10 were finished before" in again.output and len(fake.measured) == 10


def test_set_overrides_the_file(tmp_path: Path, config: Path, fake: FakeMeasure) -> None:
    arguments = ["--set", "contexts=[256]", "--set", "memory=null", "--set", f"run.out={tmp_path / 'r'}"]
    result = quantkv_command("sweep", str(config), *arguments)
    assert result.exit_code == 0, result.output
    assert fake.measured == [("quality", "int8-head", 256), ("quality", "int4-head", 256)]


def test_the_report_of_a_sweep_leaves_out_rows_of_other_settings(
    tmp_path: Path, config: Path, fake: FakeMeasure
) -> None:
    out = str(tmp_path / "r")
    quantkv_command("sweep", str(config), "--out", out)
    result = quantkv_command(
        "sweep", str(config), "--out", out, "--set", "contexts=[256]", "--set", "memory=null"
    )
    assert "2 rows" in result.output


def test_a_dry_run_prints_the_grid_and_measures_nothing(
    tmp_path: Path, config: Path, fake: FakeMeasure
) -> None:
    result = quantkv_command("sweep", str(config), "--out", str(tmp_path / "r"), "--dry-run")
    assert result.exit_code == 0 and "10 cells" in result.output and "no estimate for" in result.output
    assert fake.measured == [] and not (tmp_path / "r").exists()


def test_failed_cells_make_exit_code_3(tmp_path: Path, config: Path, fake: FakeMeasure) -> None:
    def on_cell(cell: Any) -> None:
        if cell.kind == "memory" and cell.context == 64:
            raise RuntimeError("broke")

    fake.on_cell = on_cell
    result = quantkv_command("sweep", str(config), "--out", str(tmp_path / "r"))
    assert result.exit_code == 3 and "3 failed" in result.output and "RuntimeError: broke" in result.output


def test_an_interrupted_sweep_says_how_to_go_on(tmp_path: Path, config: Path, fake: FakeMeasure) -> None:
    def on_cell(cell: Any) -> None:
        if cell.kind == "memory":
            raise KeyboardInterrupt

    fake.on_cell = on_cell
    result = quantkv_command("sweep", str(config), "--out", str(tmp_path / "r"))
    assert result.exit_code == 130
    assert "stopped with 6 cells to go; the same command goes on from here" in result.output
    assert len(list((tmp_path / "r").glob("*.json"))) == 4


def one_line(result: Result) -> str:
    """Standard error of a user's mistake: exit code 2, one line, no traceback."""
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("contxts: [1]", "contxts: unknown setting; did you mean 'contexts'?"),
        ("formats: [int4-haed]", "'formats' is given twice"),
        ("policy: {sinks: -1}", "policy.sinks.0: must be greater than or equal to 0"),
        ("batch_sizes: [0]", "batch_sizes.0: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, config: Path, change: str, message: str) -> None:
    config.write_text(CONFIG + change + "\n")
    assert message in one_line(quantkv_command("sweep", str(config), "--out", str(tmp_path / "r")))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("formats=[int4-haed]", "did you mean int4-head"),
        ("formats=[int0-head]", "int0-head"),
        ("contexts=[512", "--set contexts=[512"),
        ("quality.protocol.windws=3", "did you mean 'quality.protocol.windows'"),
    ],
)
def test_a_wrong_override_is_one_line(tmp_path: Path, config: Path, override: str, message: str) -> None:
    result = quantkv_command("sweep", str(config), "--out", str(tmp_path / "r"), "--set", override)
    assert message in one_line(result).replace("'int4-head'", "int4-head")


def test_a_missing_file_and_an_unknown_command(tmp_path: Path) -> None:
    assert "cannot read" in one_line(quantkv_command("sweep", str(tmp_path / "none.yaml")))
    assert quantkv_command("swep").exit_code == 2


@pytest.mark.long("starts a worker")
def test_what_a_real_worker_knows_up_front(tmp_path: Path, config: Path) -> None:
    refused_up_front(tmp_path, config, "contexts=[1000000]", "reads at most")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("quality.text=no/such/file.txt", "no such text file: no/such/file.txt"),
        ("models=[random-llama,nosuch-model]", "no configuration for 'nosuch-model': not a built-in name"),
    ],
)
def test_what_the_real_measure_knows_up_front(
    tmp_path: Path, config: Path, override: str, message: str
) -> None:
    refused_up_front(tmp_path, config, override, message)


def refused_up_front(tmp_path: Path, config: Path, override: str, message: str) -> None:
    result = quantkv_command("sweep", str(config), "--out", str(tmp_path / "r"), "--set", override)
    assert message in one_line(result)
    assert list((tmp_path / "r").glob("*.json")) == []


@pytest.mark.usefixtures("in_process")
def test_an_unwritable_results_folder(tmp_path: Path, config: Path) -> None:
    (tmp_path / "file").write_text("")
    result = quantkv_command("sweep", str(config), "--out", str(tmp_path / "file" / "r"))
    assert "cannot write results to" in one_line(result)


def test_report_needs_results(tmp_path: Path) -> None:
    assert "does not exist" in one_line(quantkv_command("report", str(tmp_path / "none")))
    assert "no results in" in one_line(quantkv_command("report", str(tmp_path)))


def test_report_of_a_folder_with_a_truncated_file_writes_the_rest_and_says_so(
    tmp_path: Path, config: Path, fake: FakeMeasure
) -> None:
    out = tmp_path / "r"
    quantkv_command("sweep", str(config), "--out", str(out))
    cut = sorted(out.glob("quality-*.json"))[0]
    cut.write_text(cut.read_text()[:100])
    result = quantkv_command("report", str(out))
    assert result.exit_code == 2 and f"quantkv: {cut.name} is not a whole result file" in result.stderr
    assert "9 rows" in result.output


def test_a_report_file_that_cannot_be_written_is_said_after_the_numbers(
    tmp_path: Path, config: Path, fake: FakeMeasure, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"

    def writes_little(rows: Any, folder: Path, *, warn: Any, **options: Any) -> list[Path]:
        warn("cannot write kl.png: Is a directory")
        return [Path(folder) / "table.md"]

    monkeypatch.setattr(quantkv.report.write, "write_report", writes_little)
    for arguments in (["sweep", str(config), "--out", str(out)], ["report", str(out)]):
        result = quantkv_command(*arguments)
        assert one_line(result) == "quantkv: cannot write kl.png: Is a directory"
        assert result.output.index("10 rows") < result.output.index(str(out / "report" / "table.md"))


def test_formats_lists_every_preset_unshortened() -> None:
    from quantkv.spec import presets

    result = quantkv_command("formats")
    lines = {line.split()[0]: line.split() for line in result.output.splitlines()[1:]}
    assert list(lines) == list(presets())
    assert lines["int4-head"][1] == "4.5" and lines["fp16"][1] == "16"
    assert lines["kivi-2"][-6:] == ["0", "/", "128", "128", "/", "1"]


def test_describe_predicts_the_bytes_the_cache_then_holds() -> None:
    import torch

    from quantkv import QuantizedCache
    from quantkv.models import random_model

    config = random_model("random-llama").config
    cache = QuantizedCache(config, "int4-head")
    heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(1, heads, 300, width), torch.randn(1, heads, 300, width), layer)
    result = quantkv_command("describe", "random-llama", "--format", "int4-head", "--context", "300")
    assert f"{cache.nbytes:,} bytes" in result.output
    assert result.output.count("int4-head") == 1 + config.num_hidden_layers


def test_describe_names_a_wrong_format_or_model() -> None:
    assert "did you mean" in one_line(quantkv_command("describe", "random-llama", "--format", "int4-haed"))
    assert "not a built-in name" in one_line(quantkv_command("describe", "smollm", "--format", "int4-head"))


def test_a_whole_sweep_of_a_tiny_model(tmp_path: Path, config: Path) -> None:
    """No fakes: quality, speed and memory of a random model, twice."""
    out = tmp_path / "r"
    small = ["--set", "speed={rounds: 2, block: 2, threads: 1}", "--set", "contexts=[96]"]
    small += ["--set", "policy={recent: 16}", "--set", "memory.formats=int4-head"]
    small += ["--set", "report={figures: [kl], files: [png], tables: [md]}"]
    result = quantkv_command("sweep", str(config), "--out", str(out), *small)
    assert result.exit_code == 0, result.output
    rows = [json.loads(path.read_text()) for path in out.glob("*.json")]
    assert sorted(row["kind"] for row in rows) == ["memory"] * 2 + ["quality"] * 2 + ["speed"] * 3
    assert all(row["status"] == "ok" and row[row["kind"]] for row in rows)
    again = quantkv_command("sweep", str(config), "--out", str(out), *small)
    assert again.exit_code == 0 and "0 cells measured, 7 were finished before" in again.output
