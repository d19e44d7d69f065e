"""The documentation site: built strictly, its notebooks run, its generated pages against known answers."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from conftest import SMOLLM2

import quantkv
from quantkv.models.packaged import packaged_gguf

ROOT = Path(__file__).parent.parent
TOOLS = ("mkdocs", "material", "mkdocstrings", "nbclient", "nbconvert", "ipykernel")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CUT_OFF = "[...document.querySelectorAll('pre > code')].filter(e => e.scrollWidth > e.clientWidth + 1)"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def hook(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Its notebooks run at the build, and a cell that fails stops it."""
    for tool in TOOLS:
        pytest.importorskip(tool, reason=f"{tool} is not installed: pip install 'quantkv[docs]'")
    try:
        packaged_gguf(SMOLLM2)
    except quantkv.QuantKVError as error:
        pytest.skip(f"SmolLM2, which a notebook loads, is neither installed nor to be fetched: {error}")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    threads = {"OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | threads, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return out


@pytest.mark.real
@pytest.mark.slow
def test_the_site_has_a_card_for_every_preset_and_every_public_name(site: Path) -> None:
    for name in quantkv.presets():
        assert (site / "formats" / f"{name}.html").is_file()
    reference = (site / "api.html").read_text()
    for name in set(quantkv.__all__) - {"__version__"}:
        assert re.search(rf'id="quantkv\.[\w.]*\b{name}"', reference), name


@pytest.mark.real
@pytest.mark.slow
def test_the_notebooks_ran(site: Path) -> None:
    quickstart = (site / "notebooks" / "quickstart.html").read_text()
    assert "4.50 bits per value on full pages" in quickstart
    assert re.search(r"<td>int4-head</td>\s*<td>0\.0\d+</td>", quickstart)  # a KL that was measured
    assert list((site / "notebooks" / "quickstart_files").glob("*.png"))
    assert "6.375" in (site / "notebooks" / "new_codec.html").read_text()  # (8.5 + 4.25) / 2


@pytest.mark.real
@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere_and_name_no_machine(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r'(?:src|href)="(?:https?:)?//[^"]*\.(?:js|css|woff2?)"', text), path.name
        assert str(ROOT) not in text and sys.prefix not in text, path.name


@pytest.fixture
def page(site: Path) -> Iterator[Any]:
    """A page of a laptop's browser. What it complains of, or asks the network for, fails the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser on this machine: looked for {', '.join(BROWSERS)}")
    problems: list[str] = []
    with playwright.sync_playwright() as driver:
        # no sandbox: a container's root may not make one, and the pages are our own
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.on("console", lambda said: problems.append(f"{said.type}: {said.text}"))
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("request", lambda asked: asked.url.startswith("file:") or problems.append(asked.url))
        yield opened
        browser.close()
    assert problems == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("start", ["index.html", "formats/kivi-2.html"])
def test_the_search_finds_a_page_from_a_disk(site: Path, page: Any, start: str) -> None:
    page.goto((site / start).as_uri())
    page.click(".md-search__input")
    page.keyboard.type("crossover")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url("**/figures.html*")


@pytest.mark.real
@pytest.mark.slow
def test_no_code_is_cut_off_on_a_laptop(site: Path, page: Any) -> None:
    cut = {}
    for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # that one is for a server
        page.goto(path.as_uri())
        cut[str(path.relative_to(site))] = page.evaluate(f"{CUT_OFF}.map(e => e.textContent)")
    assert {name: texts for name, texts in cut.items() if texts} == {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


def test_the_drawing_is_the_rule_it_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = (ROOT / "docs" / "assets" / "decode-exact.svg").read_text()
    assert drawn == hook("diagram", monkeypatch).drawing()
    marks = re.findall(r'<rect class="(\w+)" x="(\d+)" y="(\d+)"', drawn)
    left, top = (min(int(mark[axis]) for mark in marks) for axis in (1, 2))
    shown = {((int(y) - top) // 17, (int(x) - left) // 17): kind for kind, x, y in marks}
    assert len(shown) == 26 * 27 // 2  # every query sees itself and what came before
    for (query, key), kind in shown.items():
        boundary = 2 + 4 * ((query - 6) // 4)  # S 2, R 4, F 4; queries from 10 on decode
        decoded = query >= 10 and 2 <= key < boundary
        assert (kind == "packed") == decoded, (query, key)
        assert (kind == "sink") == (query >= 10 and key < 2)


def test_a_card_states_what_its_scheme_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pages = hook("cards", monkeypatch).pages()
    card = pages["kivi-2"]
    assert "https://arxiv.org/abs/2402.02750" in card
    assert "| 64 | 3 |" in card  # 2 bits and two float16 numbers for 32 elements
    assert "| keys | 0 | 0 | 128 | 128 | 512 | 2048 | 8192 |" in card  # whole chunks of 128
    assert "| values | 0 | 128 | 1 | 0 | 384 | 1920 | 8064 |" in card  # all but the last 128
    assert "| keys | `scale` | float16 | 4 × 64 | 32 tokens |" in card
    assert "all channels of one token of one head" in pages["int4-head"]
    assert "| 64 | 4.5 |" in pages["int4-head"] and "| 128 | 4.25 |" in pages["int4-head"]
    row = next(line for line in card.splitlines() if line.startswith("| 4096 |"))
    shipped = (ROOT / "experiments" / "quality" / "paper" / "table.md").read_text()
    numbers = next(line for line in shipped.splitlines() if line.startswith("| 4096 | ✗ kivi-2 |"))
    for cell in row.split(" | ")[1:]:  # the card prints the figures of the study's table, in its style
        assert cell.strip(" |") in numbers, cell
    for name, text in pages.items():
        for link in re.findall(r"\]\(([\w-]+)\.md\)", text):
            assert link in pages, f"{name} links to {link}"


def test_every_codec_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    text = "".join(
        page for name, page in hook("cards", monkeypatch).pages().items() if name.startswith("codec-")
    )
    for name in ("int2", "int8", "fp8-e4m3", "fp8-e5m2", "fp16", "exact"):
        assert f"`{name}`" in text


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["title"] and cited["authors"] and cited["message"]
    assert cited["version"] == quantkv.__version__
    assert f"version = {{{quantkv.__version__}}}" in (ROOT / "docs" / "citing.md").read_text()
