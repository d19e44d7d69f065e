"""Every Python block, every `quantkv` command and every sweep's YAML in the README and the docs runs.

What a page leaves out of the tests, or runs with smaller numbers there, stands in a comment before the
block (see `doc_blocks`). `make` and `pip` lines are not run. A page's Python blocks are one program.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_blocks import Block, blocks, outside_blocks
from typer.testing import CliRunner

import quantkv.models
from quantkv import policy
from quantkv.codecs import Codes, Field, LowRank, Scale, Sharing, Sparse, registry
from quantkv.commands.cli import app
from quantkv.rows.kinds import REGISTERED
from quantkv.sweep.config import load_config

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(ROOT, page)]
SWEEPS = [
    path for path in sorted((*ROOT.glob("configs/*.yaml"), *ROOT.glob("experiments/*/*.yaml")))
    if path.name != "paper.yaml"
]  # fmt: skip
SHELL = ("sh", "bash", "shell", "console")
SWEEP = {"schema": 1, "models": ["random-llama"], "formats": ["int4-head"], "contexts": [256], "memory": {}}
"""What the YAML of a page stands in where it is only a part."""
VERDICTS = {"check": (0, 10, 11), "compare": (0, 12)}
"""Exit codes other than 0 by which a command says what it found."""


def python_pages() -> list[str]:
    return sorted({b.page for b in BLOCKS if b.language == "python" and not b.reason} - {"README.md"})


def commands() -> list[Any]:
    return [
        pytest.param(command, id=f"{block.place} {command}")
        for block in BLOCKS
        if block.language in SHELL and not block.reason
        for command in block.commands
    ]


def program(page: str) -> str:
    """All Python blocks of a page as one program, as a reader would type them."""
    return "\n".join(b.program for b in BLOCKS if (b.page, b.language, b.reason) == (page, "python", ""))


@pytest.fixture(scope="module")
def _models() -> dict:
    """Models loaded so far."""
    return {}


@pytest.fixture
def workplace(_models: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with copies of what commands of the docs read. Models are loaded once; what a page registers
    is gone afterwards."""
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for known in (registry.FAMILIES, policy.POLICIES, REGISTERED):
        monkeypatch.setattr(known, "known", dict(known.known))
    real = quantkv.models.load_model

    @functools.wraps(real)
    def load_once(*args: Any, **options: Any) -> tuple[Any, Any]:
        key = repr((args, sorted(options.items())))
        if key not in _models:
            _models[key] = real(*args, **options)
        return _models[key]

    monkeypatch.setattr(quantkv.models, "load_model", load_once)
    yield tmp_path
    for model, _ in _models.values():
        model.set_attn_implementation("sdpa")


def run(page: str) -> dict:
    scope: dict = {}
    exec(compile(program(page), page, "exec", dont_inherit=True), scope)
    return scope


@pytest.mark.parametrize("page", python_pages())
def test_the_python_of_a_page_runs(page: str, smollm2: object, workplace: Path) -> None:
    scope = run(page)
    if page == "docs/adding-a-codec.md":
        assert scope["spec"].bits_packed(head_dim=64, num_key_value_heads=3) == 4 + 16 / 64
    if page == "docs/concepts.md":
        assert (scope["in_one_pass"] - scope["token_by_token"]).abs().max() < 1e-6
        assert scope["seen"].packed_read_fraction > 0.5


@pytest.mark.real
def test_the_readme_runs(smollm2: object, workplace: Path) -> None:
    scope = run("README.md")
    assert "about 6.6 bits per cached value" in program("README.md")
    assert "about 1830 tokens" in program("README.md")  # the text differs a little between Python versions
    assert scope["cache"].effective_bits == pytest.approx(6.6, abs=0.1)
    assert scope["prompt"].input_ids.shape[1] == pytest.approx(1830, abs=30)


@pytest.mark.parametrize("command", commands())
def test_a_command_runs(command: str, smollm2: object, workplace: Path) -> None:
    words = shlex.split(command)[1:]
    result = CliRunner().invoke(app, words)
    assert result.exit_code in VERDICTS.get(words[0], (0,)), result.output[-2000:]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=lambda b: b.place)
def test_the_yaml_of_a_page_is_a_sweep(block: Block, workplace: Path) -> None:
    if block.reason:
        pytest.skip(block.reason)
    sweep = {**SWEEP, **yaml.safe_load(block.program)}
    Path("page.yaml").write_text(yaml.safe_dump(sweep))
    assert load_config("page.yaml").formats


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_sweep_is_one(path: Path) -> None:
    assert load_config(path).formats


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.reason], ids=lambda b: b.place)
def test_what_is_not_run_is_named(block: Block) -> None:
    """One skip for each such block, so that the summary of a run lists them with their reasons."""
    assert len(block.reason.split()) > 2, f"{block.place}: {block.reason!r} says little"
    pytest.skip(f"{block.place}: {block.reason}")


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_from_these_tests(page: str) -> None:
    """Commands stand in fenced blocks that name their language."""
    hidden = [
        line for line in outside_blocks(ROOT, page).splitlines() if line.startswith(("    quantkv ", "```"))
    ]
    assert not hidden


def test_the_readme_has_two_tables_of_numbers() -> None:
    """The one that decides and that of speed; all others stand in the docs."""
    tables = re.findall(r"^\|.*\n\|[ :|-]+\n(?:\|.*\n)+", (ROOT / "README.md").read_text(), re.M)
    measured = [table for table in tables if len(re.findall(r"\| *[+−]?\d[\d.]*", table)) > 5]
    assert len(measured) == 2
    assert "perplexity ratio" in measured[0] and "ms per token" in measured[1]


@pytest.mark.parametrize("kind", [Field, Codes, Scale, Sharing, Sparse, LowRank])
def test_the_page_on_codecs_says_what_fields_terms_and_sharings_take(kind: Any) -> None:
    page = (ROOT / "docs/adding-a-codec.md").read_text()
    fields = [field.name for field in dataclasses.fields(kind)]
    assert fields and not [name for name in fields if f"`{name}`" not in page]
