"""Tables say what the rows say: values by hand, marks on bad rows, the best in bold, nothing invented."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console
from rows import failed_row, memory_row, quality_row, speed_row, sweep_rows
from test_paper import retrieval_row

from quantkv.report.markup import csv
from quantkv.report.tables import latex_table, markdown_table
from quantkv.report.terminal import terminal_table
from quantkv.studies.captions import caption, marks
from quantkv.studies.columns import best_labels, columns
from quantkv.studies.study import Study, studies
from quantkv.studies.study import columns as summary_columns
from quantkv.wording.numbers import DASH


def only(rows: list[dict]) -> Study:
    (study,) = studies(rows)
    return study


def cells_of(table: str, label: str, context: int) -> list[str]:
    """The cells of one Markdown line, without the bold of bad rows."""
    lines = [
        line.replace("**", "").strip("|").split("|") for line in table.splitlines() if line.startswith("|")
    ]
    found = [[cell.strip() for cell in line] for line in lines]
    return next(line for line in found if line[0] == str(context) and line[1].endswith(label))


def full_cell() -> list[dict]:
    return [
        quality_row("int4-head", 512),
        speed_row("int4-head", 512, engine="native"),
        memory_row("int4-head", 512),
    ]


TERMINAL: dict[str, object] = {"force_terminal": True, "color_system": None}


def printed(rows: list[dict], width: int, **options: object) -> str:
    out = io.StringIO()
    terminal_table(rows, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue()


def test_every_column_shows_its_number() -> None:
    assert cells_of(markdown_table(only(full_cell())), "int4-head", 512) == [
        "512",
        "int4-head",
        "4.50 / 6.10",
        "4.00",
        "0.36",
        "50.0",
        "1.25",
        "20.0",
        "1.0101",
        "+0.0100 [+0.0060, +0.0140]",
        "0.0058 [0.0050, 0.0066]",
        "97.1",
    ]


def test_times_of_the_reference_engine_are_marked_and_explained() -> None:
    study = only([speed_row("int4-head", 512), speed_row("dynamic", 512)])
    assert cells_of(markdown_table(study), "int4-head", 512)[2] == "50.0°"
    assert cells_of(markdown_table(study), "DynamicCache", 512)[2] == "50.0"
    assert "° ran on the PyTorch reference engine: no speed claim." in marks(study)


def test_the_decode_ratio_says_in_every_table_which_way_it_goes() -> None:
    study, sentence = only(full_cell()), "decode time ÷ that of DynamicCache (lower is faster)"
    assert "decode time (÷ Dynamic)" in markdown_table(study) and sentence in markdown_table(study)
    assert sentence.replace("÷", r"$\div$") in latex_table(study)
    assert sentence in printed(full_cell(), 80)


def test_each_mark_is_explained_where_it_is_used_on_a_line_of_its_own() -> None:
    text = printed([quality_row("int4-head", 512, values={"kl_mean": 0.05})], 80, **TERMINAL)
    assert "\n! caution: mean KL of 0.02 nats or more.\n" in text and "unfit" not in text


@pytest.mark.parametrize("column", columns(), ids=lambda column: column.name)
def test_a_record_without_numbers_shows_only_em_dashes(column: object) -> None:
    nothing = dict.fromkeys(summary_columns())
    assert column.text(nothing) == DASH  # type: ignore[attr-defined]
    assert column.narrow(nothing) == DASH  # type: ignore[attr-defined]


def test_kinds_that_were_not_measured_for_a_format_are_dashes() -> None:
    table = markdown_table(only([*full_cell(), memory_row("kivi-2", 512)]))
    assert cells_of(table, "kivi-2", 512)[4:] == ["0.36"] + [DASH] * 7


def test_failed_and_skipped_cells_show_status_and_reason() -> None:
    rows = [*full_cell(), failed_row("memory", "kivi-2", 512, "out | of\nmemory")]
    rows.append(failed_row("speed", "kivi-2", 512, "needs a_GPU", status="skipped"))
    table = markdown_table(only(rows)).replace(r"\|", "/")
    reasons = r"speed skipped: needs a\_GPU; memory failed: out / of memory"
    assert cells_of(table, "kivi-2", 512)[2:] == [DASH, "failed", DASH, "skipped", *[DASH] * 6, reasons]


def test_bold_is_the_best_and_an_unfit_row_is_marked_and_said() -> None:
    rows = [point("kivi-4", 5.0, 0.004, 0.003, 0.005), point("int4-head", 4.5, 0.007, 0.006, 0.008)]
    table = markdown_table(only([*rows, point("kivi-2", 3.0, 0.2, None, None)]))
    lines = {line.split("|")[2].strip(): line for line in table.splitlines() if line.startswith("| 512")}
    assert "**0.0040 [0.0030, 0.0050]**" in lines["kivi-4"] and "**0.0070" not in lines["int4-head"]
    assert "UNFIT: KL ≥ 0.1" in lines["✗ kivi-2"] and "**" not in lines["✗ kivi-2"]
    assert "Bold: at each context the best" in table
    assert "Bold" not in markdown_table(only([quality_row("int8-head", 512)]))  # where nothing is bold


def test_a_flag_that_only_repeats_the_verdict_is_not_said_twice() -> None:
    values = {"kl_mean": 0.48, "flags": ["KL above 0.1 nats per token", "top-1 agreement below 80%"]}
    table = markdown_table(only([quality_row("int4-head", 512, values=values)]))
    assert cells_of(table, "int4-head", 512)[-1] == "UNFIT: KL ≥ 0.1; top-1 agreement below 80%"


def test_what_a_mark_points_to_stands_in_the_same_file() -> None:
    low, slow = {"kl_mean": 0.001, "flags": ["top-5 looks odd"]}, {"flags": ["bandwidth drifted by +30%"]}
    rows = [quality_row("int4-head", 512, values=low), speed_row("int4-head", 512, values=slow)]
    for text in (latex_table(only(rows)), markdown_table(only(rows)), printed(rows, 200)):
        assert "see the notes" in text
        assert "top-5 looks odd" in text and "bandwidth drifted by +30" in text
    assert r"Notes: top-5 looks odd (int4-head at 512); speed: bandwidth drifted by +30\%" in latex_table(
        only(rows)
    )


def test_the_bits_of_the_pareto_figure_have_a_name() -> None:
    for text in (latex_table(only(full_cell())), markdown_table(only(full_cell()))):
        assert "bits_cache_16 of table.csv" in text.replace("\\", "")
    assert "bits_cache_16" in csv(only(full_cell()).frame)
    assert not any("bits_cache_16" in mark for mark in marks(only([memory_row("int4-head", 512)])))


def point(format: str, bits: float, kl: float, low: float | None, high: float | None) -> dict:
    values = {"bits_packed": bits, "kl_mean": kl, "kl_low": low, "kl_high": high, "delta_nll_low": None}
    return quality_row(format, 512, values=values)


def bold_kl(rows: list[dict]) -> set[str]:
    """The formats whose KL is bold."""
    records = only(rows).records()
    (column,) = (column for column in columns() if column.name == "kl")
    return {records[index]["label"] for index in best_labels(column, records)}


def test_the_best_of_comparable_bits_is_bold() -> None:
    rows = [
        point("fp16", 16.0, 1e-8, None, None),
        point("int8-channel", 9.0, 1e-5, 0.8e-5, 1.2e-5),
        point("int8-head", 8.5, 2e-5, 1.7e-5, 2.3e-5),
        point("k8v4", 6.5, 4e-4, 3e-4, 5e-4),
        point("kivi-4", 5.0, 4e-3, 3e-3, 5e-3),
        point("int4-head", 4.5, 7e-3, 6e-3, 8e-3),
        point("kivi-2", 3.0, 0.2, None, None),
    ]
    assert bold_kl(rows) == {"int8-channel", "kivi-4"}
    table = latex_table(only(rows))
    assert r"\textbf{0.0040 [0.0030, 0.0050]}" in table and r"\textbf{0.0070" not in table
    assert r"1.0$\times10^{-8}$" in table and r"\textbf{1.0$\times10^{-8}$}" not in table
    assert r"\textbf{4.50 / 6.10}" in table and r"\textbf{6.50" not in table and r"\textbf{3.00" not in table
    assert r"$\times$~kivi-2" in table
    assert "best of the quantized formats with comparable bits" in table


@pytest.mark.parametrize(
    ("other", "bold"),
    [
        ((0.005, 0.0045, 0.0055), {"kivi-4", "int4-head"}),
        ((0.005, 0.0046, 0.0055), {"kivi-4"}),
        ((0.0055, None, None), {"kivi-4"}),
        ((0.0035, None, None), set()),  # the best has no interval
    ],
)
def test_formats_whose_intervals_overlap_are_bold_too(other: tuple, bold: set[str]) -> None:
    rows = [point("kivi-4", 5.0, 0.004, 0.0035, 0.0045), point("int4-head", 4.5, *other)]
    assert bold_kl(rows) == bold


def test_a_format_alone_among_its_bits_has_beaten_nobody() -> None:
    assert bold_kl([point("int8-head", 8.0, 1e-5, None, None), point("k8v4", 7.9, 1e-4, None, None)]) == set()
    assert bold_kl([point("int4-head", 4.0, 1e-2, None, None), point("mine", 3.9, 1e-3, None, None)]) == set()


def test_a_simulated_format_is_ranked_with_nothing() -> None:
    rows = [point("kivi-4", 5.0, 0.004, 0.0035, 0.0045), point("int4-head", 4.5, 0.006, 0.0055, 0.0065)]
    better = point("mine", 4.8, 0.001, 0.0009, 0.0011)
    assert bold_kl([*rows, better]) == {"mine"}
    assert bold_kl([*rows, better | {"effective": better["effective"] | {"simulated": True}}]) == {"kivi-4"}


def test_reference_engine_times_are_never_the_best() -> None:
    rows = [
        speed_row("int8-head", 512, values={"decode_ms_median": 10.0}, engine="native"),
        speed_row("kivi-4", 512, values={"decode_ms_median": 12.0}, engine="native"),
        speed_row("int4-head", 512, values={"decode_ms_median": 5.0}, engine="reference"),
    ]
    table = latex_table(only(rows))
    assert r"\textbf{10.0}" in table
    assert r"5.00$^{\circ}$" in table and r"\textbf{5.00" not in table


def test_latex_escapes_names_and_uses_booktabs() -> None:
    table = latex_table(only([quality_row("my_format&co", 512), memory_row("my_format&co", 512)]))
    assert r"my\_format\&co" in table
    assert "my_format" not in table
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert table.count(rule) == 1
    assert table.count(r"\begin{") == table.count(r"\end{")


def test_latex_lines_have_as_many_cells_as_columns() -> None:
    table = latex_table(only(sweep_rows()))
    columns = table.split(r"\begin{tabular}{@{}")[1].split("@{}}")[0]
    lines = [line for line in table.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(lines) == 2 + 3 * 8
    assert {line.count(" & ") + 1 for line in lines} == {len(columns)}


def test_captions_state_model_weights_text_protocol_engine_and_machine() -> None:
    text = caption(only(sweep_rows()))
    for part in (
        "smollm2-135m-instruct-q4_1 (weights 4-bit gguf (Q4_1), computed in float32",
        "revision 0123456789ab, batch 1).",
        "text python-docs (sha256 9f2c41d07be6), prefill exact, 16 windows of 128 scored tokens",
        "BOS in each window",
        "10 rounds of 8 decode steps interleaved with DynamicCache",
        "2 threads, engine reference",
        "4 sinks and the last 64, packed 32 at a time",
        "Intel(R) Xeon(R) Processor, 2 cores, 16 GB; quantkv 0.1.0, torch 2.13.0, transformers 5.24.0",
    ):
        assert part in text


def test_a_caption_of_one_kind_says_nothing_of_the_others() -> None:
    text = caption(only(sweep_rows()), ("memory",))
    assert "Memory:" in text
    assert "Quality:" not in text and "Speed:" not in text


def test_csv_round_trip_keeps_every_number_in_full() -> None:
    frame = only([*sweep_rows(), failed_row("memory", "kivi-2", 8192, 'a, "quoted"\nreason')]).frame
    again = pd.read_csv(io.StringIO(csv(frame)))
    assert list(again.columns) == list(frame.columns)
    for name in frame.select_dtypes("number").columns:
        pd.testing.assert_series_equal(again[name].astype(float), frame[name].astype(float), check_exact=True)
    assert again["memory_reason"].dropna().tolist() == ['a, "quoted"\nreason']
    assert "held_bytes" in again and (again["held_bytes"].dropna() % 1 == 0).all()
    assert "11796480," in csv(frame) and "11796480.0" not in csv(frame)


def test_terminal_fits_80_columns_in_two_tables_and_cuts_nothing() -> None:
    lines = printed(sweep_rows(), 80, **TERMINAL).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert sum(line.startswith(" ctx") or line.startswith("ctx") for line in lines) == 2


def test_the_table_is_whole_where_the_output_is_no_terminal() -> None:
    assert printed(sweep_rows(), 80) == printed(sweep_rows(), 300)


@pytest.mark.parametrize("options", [{}, TERMINAL], ids=["pipe", "terminal"])
def test_the_table_of_retrieval_is_never_squeezed(options: dict) -> None:
    text = printed([retrieval_row("k.int8-channel@g32+v.int4-head+r128+s4", 512)], 60, **options)
    (line,) = (line for line in text.splitlines() if line.startswith("passkey"))
    assert "…" not in text and "k.int8-channel@g32+v.int4-head+r128+s4" in line
    assert "60 [60, 60]" in line and line.rstrip().endswith("no worse")


def test_times_say_how_the_machine_changed_under_them() -> None:
    rows = [speed_row("fp16", 512, values={"bandwidth_drift": 0.02})]
    rows.append(speed_row("fp16", 2048, values={"bandwidth_drift": -0.3}))
    said = caption(only(rows))
    assert "compare times within a context" in said and "drifted while timing: -30% at 2048." in said
    alone = caption(only(rows[:1]))
    assert "within a context" not in alone and "drifted" not in alone


@pytest.mark.parametrize(
    ("fill", "words"), [("prefill", "by a prefill"), ("synthetic", "with random keys and values")]
)
def test_a_caption_says_how_a_cache_was_filled_and_counts_one_core(fill: str, words: str) -> None:
    row = speed_row("fp16", 512, protocol={"fill": fill})
    row["provenance"]["machine"]["cores"] = 1
    assert f"cache filled {words}" in caption(only([row])) and ", 1 core," in caption(only([row]))


def test_remarks_and_captions_are_whole_lines_where_the_output_is_no_terminal() -> None:
    assert f"\n{caption(only(sweep_rows()))}\n" in printed(sweep_rows(), 80)


def test_terminal_shows_everything_in_one_table_where_there_is_room() -> None:
    text = printed(sweep_rows(), 200)
    (header,) = [line for line in text.splitlines() if "context" in line and "format" in line]
    assert "+0.0041 [+0.0023, +0.0058]" in text
    assert "ms/token" in header and "nats/token" in header


def test_an_unfit_row_is_white_on_red_on_the_terminal() -> None:
    text = printed(sweep_rows(), 200, force_terminal=True, color_system="standard")
    (row,) = [line for line in text.splitlines() if "kivi-2" in line and "0.110" in line]
    assert "37;41m" in row
    assert "kivi-2 at 512, 2048, 4096: UNFIT: KL ≥ 0.1" in text


def test_terminal_says_each_failure_once_with_its_rows() -> None:
    rows = [failed_row("memory", name, 512, "the worker died") for name in ("int8-head", "int4-head")]
    text = printed(rows, 200)
    assert "memory failed: the worker died (int8-head at 512, int4-head at 512)" in text
    assert text.count("the worker died") == 1


def test_terminal_without_results_says_so() -> None:
    assert printed([], 80) == "no results yet\n"
