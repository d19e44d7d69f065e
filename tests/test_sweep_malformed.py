"""Two hundred sweep files with something wrong in each: one message, exit code 2, no traceback."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from quantkv.commands.cli import app

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
WRONG: tuple[Any, ...] = (
    -1, 0, 1.5, True, None, "", "no such thing", "int9-head", [], [[]], {}, {"a": 1}, [None], 10**30,
    float("nan"), float("inf"), "4/3", "chunk:0", "\x85", "é" * 300, [{"id": ""}], {"id": 3}, "peer:none",
)  # fmt: skip
COUNTS = [40, pytest.param(100, marks=pytest.mark.slow)]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested settings."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def spoilt_settings(chance: random.Random, text: str) -> str:
    """One setting replaced, renamed, or taken away."""
    settings = copy.deepcopy(yaml.safe_load(text))
    *path, last = chance.choice(list(places(settings)))
    inside = settings
    for key in path:
        inside = inside[key]
    what = chance.choice(["replace", "replace", "replace", "rename", "delete"])
    if what == "replace":
        inside[last] = chance.choice(WRONG)
    elif what == "rename" and isinstance(inside, dict):
        inside[f"{last}x"] = inside.pop(last)
    else:
        del inside[last]
    return yaml.safe_dump(settings, allow_unicode=True)


def spoilt_text(chance: random.Random, text: str) -> str:
    """Characters put in, or a piece cut out or doubled, anywhere in the file."""
    start = chance.randrange(len(text))
    piece = text[start : start + chance.randrange(1, 40)]
    noise = chance.choice(
        ["[", "]", "{", "}", ":", " :", "\t", "&a ", "*a ", "!!x ", "- ", "\x00", "'", '"', "? "]
    )
    return (
        text[:start] + chance.choice([noise, "", piece * 2]) + text[start + chance.choice([0, len(piece)]) :]
    )


def malformed(spoil: Any, count: int, tmp_path: Path) -> Iterator[tuple[str, Result]]:
    """The first `count` spoilt files that are refused, each with what a user sees."""
    chance, found = random.Random(17), 0
    while found < count:
        text = spoil(chance, chance.choice(CONFIGS).read_text())
        file = tmp_path / "sweep.yaml"
        file.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(app, ["sweep", str(file), "--dry-run"])
        if result.exit_code or result.exception:
            found += 1
            yield text, result


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("spoil", [spoilt_settings, spoilt_text])
def test_a_malformed_file_is_one_message(
    spoil: Any, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkv.commands.dry_run.print_grid", lambda settings, console: None)
    for text, result in malformed(spoil, count, tmp_path):
        assert isinstance(result.exception, SystemExit) and result.exit_code == 2, (text, result.exception)
        lines = result.stderr.splitlines()
        assert lines and all(line.startswith("quantkv: ") for line in lines), (text, result.stderr)
        assert "Traceback" not in result.output and "pydantic" not in result.output, (text, result.output)
        assert result.stdout == "" and len(set(lines)) == len(lines), (text, result.stderr)
