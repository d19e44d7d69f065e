"""A renamed format has its new name in every report; its rows are not measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rows import quality_row
from typer.testing import CliRunner

from quantkv.commands.cli import app
from quantkv.sweep.config import validate
from quantkv.sweep.naming import current_names

SPEC = "k.int4-head+v.int4-head+s4+r8+f32"


def sweep(*formats: Any, **sections: Any) -> dict[str, Any]:
    base = {"schema": 1, "models": ["random-llama"], "contexts": [128], "memory": {}}
    return base | {"formats": list(formats)} | sections


def names_of(rows: list[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    return [row["requested"]["format"] for row in current_names(rows, validate(settings))]


def row(name: str, spec: str) -> dict[str, Any]:
    return quality_row(name, 64, spec=spec)


def test_the_current_name_wins_over_the_one_in_the_row() -> None:
    settings = sweep("dynamic", {"name": "ours", "spec": SPEC}, "int8-head")
    ours = str(validate(settings).formats[1].with_policy())
    rows = [row("mine", ours), row("dynamic", "dynamic"), row("elsewhere", "kivi-2")]
    assert names_of(rows, settings) == ["ours", "dynamic", "elsewhere"]
    assert rows[0]["requested"]["format"] == "mine"  # what was measured stays as it was written


@pytest.mark.parametrize(("stored", "shown"), [("a", "a"), ("b", "b"), ("before", "a")])
def test_a_spec_with_two_names_keeps_the_one_it_has(stored: str, shown: str) -> None:
    formats = [{"name": name, "spec": SPEC} for name in ("a", "b")]
    settings = sweep(*formats, speed={"formats": ["b"]})
    spec = str(validate(settings).formats[0].with_policy())
    assert names_of([row(stored, spec)], settings) == [shown]


@pytest.mark.usefixtures("in_process")
def test_a_sweep_and_a_report_of_its_file_show_the_new_name(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    quality = {"text": str(text), "protocol": {"score": 32, "windows": 2}}
    report = {"figures": ["kl"], "files": ["svg"], "tables": ["md"], "html": False}
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"

    def run(*command: str, name: str) -> str:
        content = sweep({"name": name, "spec": SPEC}, quality=quality, report=report, run={"out": str(out)})
        file.write_text(yaml.safe_dump({key: value for key, value in content.items() if key != "memory"}))
        result = CliRunner().invoke(app, list(command))
        assert result.exit_code == 0, result.output
        return result.output + (out / "report" / "table.md").read_text()

    assert "before" in run("sweep", str(file), name="before")
    again = run("sweep", str(file), name="after")
    assert "1 were finished before" in again and "after" in again and "before |" not in again
    (kept,) = (json.loads(path.read_text()) for path in out.glob("quality-*.json"))
    assert kept["requested"]["format"] == "before"
    assert " later |" in run("report", str(out), "--config", str(file), name="later")
