"""The page in Chromium: it loads from a file, asks the network nothing, sorts, filters, fits a phone.

Skipped where playwright or a Chromium is missing. Playwright drives the system's own browser.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import failed_row, quality_row, sweep_rows

from quantkv.report.html import page as made

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
DASH = "—"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser on this machine: looked for {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        # no sandbox: a container's root may not make one, and the page is our own
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """``opened(rows)`` is a loaded page; whatever it complains of or asks the network for fails the test."""
    contexts, problems = [], []

    def load(rows: list[dict], size: dict[str, int] = DESK, scheme: str = "light") -> Any:
        path = tmp_path / "report.html"
        path.write_text(made(rows))
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
        loaded = contexts[-1].new_page()
        loaded.on("console", lambda said: problems.append(f"{said.type}: {said.text}"))
        loaded.on("pageerror", lambda error: problems.append(str(error)))
        loaded.on("dialog", lambda box: problems.append(f"dialog: {box.message}"))
        loaded.on("request", lambda asked: asked.url.startswith("file:") or problems.append(asked.url))
        loaded.goto(path.as_uri())
        return loaded

    yield load
    for context in contexts:
        context.close()
    assert problems == []


def shipped(study: str = "smollm2") -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((EXPERIMENTS / study / "rows").glob("*.json"))]


def lines(loaded: Any, column: str | None = None) -> list[str]:
    """Cells of a column, or the lines' own names, of the lines to be seen, from top to bottom."""
    rows = loaded.locator(".scroll:visible tbody tr:visible")
    if column is None:
        return rows.locator("th").all_inner_texts()
    heads = [text.split("\n")[0] for text in loaded.locator(".scroll:visible thead th").all_inner_texts()]
    return rows.locator(f":nth-child({heads.index(column) + 1})").all_inner_texts()


def head(loaded: Any, column: str) -> Any:
    return loaded.locator(".scroll:visible thead th").filter(has_text=column).first


def test_the_shipped_sweep_draws_four_plots_and_lists_every_cell(opened: Any) -> None:
    loaded = opened(shipped())
    assert loaded.locator("#charts figure > .chart > svg").count() == 4
    assert loaded.locator("#count").inner_text() == "27 of 27 lines, 54 rows"
    assert "kivi-2 at 512, 2048, 4096" in loaded.locator("#warnings .damaged").inner_text()


def test_sorting_orders_numbers_and_leaves_what_is_missing_last(opened: Any) -> None:
    memory = {"int4-head": 9_437_184, "kivi-4": 104_857_600, "kivi-2": 10_485_760}
    rows = sweep_rows(contexts=(512,), formats=tuple(memory))
    rows = [one for one in rows if one["requested"]["format"] != "dynamic"] + [quality_row("int8-head", 512)]
    for one in rows:
        if one["kind"] == "memory":
            one["memory"]["held_bytes"] = memory[one["requested"]["format"]]
    loaded = opened(rows)
    memory_head = head(loaded, "memory")
    assert memory_head.get_attribute("aria-sort") == "none"
    memory_head.locator("button").click()
    assert memory_head.get_attribute("aria-sort") == "ascending"
    assert lines(loaded, "memory") == ["9.00", "10.0", "100", DASH]
    memory_head.locator("button").press("Enter")
    assert memory_head.get_attribute("aria-sort") == "descending"
    assert lines(loaded, "memory") == ["100", "10.0", "9.00", DASH]
    head(loaded, "format").locator("button").click()
    assert [name.removeprefix("✗ ") for name in lines(loaded)] == [
        "int4-head",
        "int8-head",
        "kivi-2",
        "kivi-4",
    ]
    assert memory_head.get_attribute("aria-sort") == "none"


def test_filters_by_kind_format_model_and_context(opened: Any) -> None:
    rows = sweep_rows(contexts=(512, 2048), formats=("fp16", "int4-head"))
    rows += sweep_rows(contexts=(512,), formats=("int4-head",), model="other")
    loaded = opened(rows)
    assert len(lines(loaded)) == 2 * 3 + 2  # with the baseline
    loaded.select_option("[data-filter=format]", "int4-head")
    assert [name.split()[-1] for name in lines(loaded)] == ["int4-head"] * 3
    loaded.select_option("[data-filter=context]", "512")
    assert len(lines(loaded)) == 2
    loaded.select_option("[data-filter=model]", "other")
    assert len(lines(loaded)) == 1 and loaded.locator("#count").inner_text() == "1 of 8 lines, 3 rows"
    loaded.select_option("[data-filter=context]", "2048")
    assert lines(loaded) == [] and loaded.get_by_text("No row matches.").first.is_visible()
    loaded.select_option("[data-filter=context]", "")
    loaded.get_by_role("button", name="speed", exact=True).click()
    speed = sum(one["kind"] == "speed" for one in rows)
    assert lines(loaded) == ["int4-head"]
    assert loaded.locator("#count").inner_text() == f"1 of {speed} lines, 1 row"
    loaded.select_option("[data-filter=model]", "")
    loaded.select_option("[data-filter=format]", "")
    assert len(lines(loaded)) == speed


def test_a_line_opens_the_rows_behind_it_with_mouse_and_keyboard(opened: Any) -> None:
    row = quality_row("int4-head", 512)
    row["requested"]["attn"], row["effective"]["attn"] = "quantkv", "sdpa"
    loaded = opened([row])
    loaded.locator(".scroll:visible tbody td").nth(1).click()
    dialog = loaded.get_by_role("dialog")
    said = dialog.inner_text()
    assert row["key"] in said and "machine.cpu" in said and row["protocol"]["text_sha256"] in said
    assert "attn\tquantkv\tsdpa" in dialog.locator("tr.differs").inner_text()
    assert dialog.get_by_text("windows (1)").is_visible()
    loaded.keyboard.press("Escape")
    assert not dialog.is_visible()
    loaded.locator(".scroll:visible .open").focus()
    loaded.keyboard.press("Enter")
    assert dialog.is_visible()
    dialog.get_by_role("button", name="close").click()
    assert not dialog.is_visible()


def test_a_format_can_be_hidden_from_the_plots_and_a_mark_tells_its_row(opened: Any) -> None:
    loaded = opened(sweep_rows(contexts=(512, 2048), formats=("fp16", "kivi-2")))
    chip = loaded.get_by_role("button", name="kivi-2", exact=True).first
    kl = loaded.locator("#charts figure").nth(1).locator(".chart > svg")
    before = kl.locator("[aria-label=dot] path").count()
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert kl.locator("[aria-label=dot] path").count() == before - 2  # one mark at each context
    chip.click()
    mark = kl.locator("[aria-label=dot] path").first
    mark.hover()
    assert "nats per token" in kl.locator("[aria-label=tip]").text_content()
    mark.click(force=True)
    assert "quality of" in loaded.get_by_role("dialog").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button_turns_it_round(opened: Any, scheme: str) -> None:
    loaded = opened(sweep_rows(contexts=(512,), formats=("int4-head",)), scheme=scheme)

    def brightness() -> int:
        color = loaded.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.strip("rgb()").split(","))

    first = brightness()
    assert first > 700 if scheme == "light" else first < 100
    loaded.get_by_role("button", name="Switch between light and dark").click()
    assert brightness() < 100 if scheme == "light" else brightness() > 700
    loaded.get_by_role("button", name="Switch between light and dark").click()
    assert brightness() == first


@pytest.mark.parametrize(
    "label", ["int4-head", "k.int2-channel@g32.near+r0+f128+v.int2-token@g32.near+r128+f1"]
)
def test_a_phone_scrolls_tables_not_the_page(opened: Any, label: str) -> None:
    rows = [quality_row(label, context) for context in (512, 2048)]
    rows.append(failed_row("memory", label, 512, "an_error_of_one_very_long_word_" * 8))
    loaded = opened(rows, size=PHONE)
    assert loaded.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    table = loaded.locator(".scroll:visible")
    assert table.evaluate("place => place.scrollWidth > place.clientWidth")
    table.locator(".open").first.click()
    assert loaded.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    width = loaded.locator("dialog").evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert width[0] <= width[1]


def boxes(found: Any) -> list[tuple[float, float, float, float]]:
    sides = "all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.right, b.top, b.bottom])"
    return [tuple(box) for box in found.evaluate_all(sides)]


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_names_do_not_overprint_and_one_context_uses_the_whole_axis(opened: Any, size: Any) -> None:
    loaded = opened(shipped("quality"), size=size)
    figures = loaded.locator("#charts figure")
    names = boxes(figures.nth(0).locator("[aria-label=text] text").filter(has_text="-"))
    assert len(names) == 7  # of nine formats: fp16 and k8v4 have no hyphen
    for one, other in itertools.combinations(names, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or abs(one[2] - other[2]) >= 11
        assert apart, (one, other)
    needle = figures.filter(has_text="Retrieval: needle at 1024 tokens")
    marks = boxes(needle.locator("[aria-label=dot] path"))
    (svg,) = boxes(needle.locator(".chart > svg"))
    assert max(mark[0] for mark in marks) - min(mark[0] for mark in marks) > 0.6 * (svg[1] - svg[0])


def test_the_table_takes_the_width_there_is(opened: Any) -> None:
    loaded = opened(shipped(), size={"width": 1920, "height": 1080})
    assert loaded.locator(".scroll:visible").evaluate("place => place.scrollWidth <= place.clientWidth")
    assert loaded.evaluate("document.documentElement.scrollWidth") <= 1920


def test_labels_that_are_markup_do_nothing(opened: Any) -> None:
    label = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    rows = sweep_rows(contexts=(512, 2048), formats=("fp16",))
    for one in rows:
        if one["requested"]["format"] == "fp16":
            one["requested"]["format"], one["requested"]["spec"] = label, label
    loaded = opened([*rows, failed_row("memory", label + "2", 512, label)])
    assert loaded.get_by_role("button", name=label, exact=True).first.is_visible()
    loaded.locator(".scroll:visible .open").last.click()
    assert label in loaded.get_by_role("dialog").inner_text()
    loaded.keyboard.press("Escape")
    loaded.locator("#charts .chart > svg [aria-label=dot] path").first.hover()


def test_pages_of_nothing_and_of_failures_load(opened: Any) -> None:
    assert opened([]).get_by_text("There are no result rows here.").is_visible()
    loaded = opened([failed_row("quality", "int4-head", 512, "broke")])
    assert "quality failed: broke" in loaded.locator("#warnings").inner_text()


def test_it_prints_in_light_colours_with_the_whole_table(opened: Any) -> None:
    loaded = opened(shipped(), scheme="dark")
    loaded.emulate_media(media="print", color_scheme="dark")
    color = loaded.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in color.strip("rgb()").split(",")) > 700
    table = loaded.locator(".scroll:visible")
    assert table.evaluate("place => place.scrollHeight <= place.clientHeight + 1")
    assert loaded.pdf()[:5] == b"%PDF-"
