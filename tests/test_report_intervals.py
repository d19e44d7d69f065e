"""With too few samples for an interval, no file of a report ranks anything or speaks of intervals."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rows import failed_row, quality_row, row, speed_row, sweep_rows
from test_paper import retrieval_row

from quantkv.comparison import compare
from quantkv.comparison.table import comparison_lines
from quantkv.report.figures import titles
from quantkv.report.html.data import payload
from quantkv.report.html.index import results
from quantkv.report.kind_tables import kind_tables
from quantkv.report.tables import latex_table, markdown_table
from quantkv.report.terminal import terminal_table
from quantkv.report.write import write_report
from quantkv.studies.captions import caption
from quantkv.studies.study import studies

ENDS = ("delta_nll_low", "delta_nll_high", "kl_low", "kl_high", "ratio_low", "ratio_high")


def few(rows: list[dict]) -> list[dict]:
    """The same rows from 4 windows and 4 rounds: `window_interval` and `median_interval` give None then."""
    for one in rows:
        section = one[one["kind"]]
        section |= {name: None for name in ENDS if name in section}
        one["protocol"] |= {"windows": 4} if one["kind"] == "quality" else {}
        one["protocol"] |= {"rounds": 4} if one["kind"] == "speed" else {}
    return rows


def native(rows: list[dict]) -> list[dict]:
    """Times of the native engine compete."""
    for one in rows:
        one["effective"]["engine"] = "native"
    return rows


def words(page: str) -> str:
    """What a reader sees of a page: no scripts, no licences."""
    return re.sub(r"<(script|style|footer).*?</\1>", "", page, flags=re.S)


@pytest.mark.long("draws every figure")
def test_four_windows_give_no_bold_and_no_word_of_intervals_in_any_file(tmp_path: Path) -> None:
    rows = few(native(sweep_rows((512, 2048))))
    write_report(rows, tmp_path, figures=titles(), files=["png"])
    printed = io.StringIO()
    terminal_table(rows, Console(file=printed, width=200))
    texts = {path.name: path.read_text() for path in tmp_path.iterdir() if path.suffix != ".png"}
    assert {"table.md", "table.tex", "figures.tex", "report.html"} < set(texts)
    texts |= {"terminal": printed.getvalue(), "report.html": words(texts["report.html"])}
    for name, text in texts.items():
        assert "**" not in text and r"\textbf" not in text and "Bold" not in text, name
        told = re.sub(r"(\w+_(low|high)|^.*,delta_nll_low,.*$)", "", text, flags=re.M)
        assert "interval" not in told.lower(), name
    assert "4 windows of 128 scored tokens, too few to rank formats by" in texts["table.md"]
    charts = [chart for own in payload(results(rows))["studies"] for chart in own["charts"]]
    assert charts and not any("interval" in chart["note"] for chart in charts)
    assert "too few" in texts["report.html"] and "fastest" not in texts["report.html"]


def test_enough_windows_are_ranked_and_the_caption_says_by_what() -> None:
    (study,) = studies(native(sweep_rows((512,))))
    said = (
        "(of a full page: below 4, from 4, from 6, from 8), fewest bits, least memory, shortest time, "
        "most tokens per second, perplexity ratio closest to 1, ΔNLL closest to 0, lowest KL; with it those"
    )
    assert "**" in markdown_table(study) and said in markdown_table(study)
    assert "intervals over windows" in caption(study)
    assert "perplexity ratio closest to 1" in latex_table(study)


def test_cells_that_all_failed_have_no_intervals_either() -> None:
    (study,) = studies([failed_row("quality", "int4-head", 512, "out of memory", protocol={"windows": 2})])
    assert "2 windows of 128 scored tokens, BOS" in caption(study) and "interval" not in caption(study)


def test_a_share_without_an_interval_has_no_winner() -> None:
    """Rows hold no interval of top-1 agreement, whatever the number of windows."""
    shares = {"int8-head": 0.99, "int8-channel": 0.98}
    rows = [
        quality_row(name, 512, values={"bits_packed": 8.5, "top1_agreement": s}) for name, s in shares.items()
    ]
    (study,) = studies(rows)
    assert "| 99.0 |" in markdown_table(study) and "**99.0**" not in markdown_table(study)
    assert "columns without intervals" in markdown_table(study)


@pytest.mark.parametrize(("low", "high", "bold"), [(1.1, 1.15, True), (None, None, False)])
def test_times_of_few_rounds_have_no_winner(low: float | None, high: float | None, bold: bool) -> None:
    values = {"decode_ms_median": 45.0, "ratio_to_baseline": 1.12, "ratio_low": low, "ratio_high": high}
    rows = [speed_row("int8-head", 512, values=values), speed_row("int4-head", 512)]
    (study,) = studies(native(rows))
    assert ("**45.0**" in markdown_table(study)) is bold


def verdict(n: int, said: str | None = "no difference shown") -> str:
    section = {"n": n, "verdict": said}
    one: dict[str, Any] = retrieval_row("int4-head", 512)
    one["retrieval"] |= section
    text = kind_tables([one], ["md"])["retrieval.md"]
    return [cell.strip() for cell in text.splitlines()[2].split("|")][-2]


def test_an_exact_test_of_five_questions_can_show_nothing() -> None:
    """Its least p-value is 2 / 2 ** n: 0.0625 for 5 questions, 0.031 for 6."""
    assert verdict(5) == "too few questions" and verdict(6) == "no difference shown"


def test_a_comparison_without_intervals_has_no_column_of_them() -> None:
    """Four windows, paired: a difference without an interval."""
    windows = [{"start": s, "n": 8, "sum_nll": 20.0, "sum_nll_ref": 19.0, "sum_kl": 0.1} for s in range(4)]
    ours = row("quality", "int4-head", 512, quality_row("x", 512)["quality"] | {"windows": windows})
    moved = [w | {"sum_kl": 0.3} for w in windows]
    theirs = row(
        "quality", "int4-head", 512, quality_row("x", 512)["quality"] | {"windows": moved, "kl_mean": 0.1}
    )
    out = io.StringIO()
    for part in comparison_lines(compare([ours], [theirs])):
        Console(file=out, width=200).print(part)
    assert "change" in out.getvalue() and "95 %" not in out.getvalue()
