"""The page without a browser: every row and flag is in it, nothing escapes, equal rows make equal pages."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import failed_row, memory_row, quality_row, row, speed_row, sweep_rows

from quantkv.drawing.style import STYLES, styles_for
from quantkv.report.html import page
from quantkv.report.html.alerts import alerts
from quantkv.report.html.grid import JOINED, grids
from quantkv.report.html.index import results
from quantkv.report.html.looks import DARK_BACKGROUND, MIN_CONTRAST, contrast, dark_color, looks, outline
from quantkv.report.html.words import limits, words
from quantkv.report.write import write_report
from quantkv.studies.headings import heading

SMOLLM2 = Path(__file__).parents[1] / "experiments" / "smollm2" / "rows"
FIVE_MB = 5_000_000
HOSTILE = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "\"' onclick='x", "{{7*7}}"]


class Parsed(HTMLParser):
    """Every element with its attributes, all text that a reader sees, and the JSON that scripts read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.text).append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def shipped_rows() -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(SMOLLM2.glob("*.json"))]


def test_every_row_and_every_flag_is_in_the_page() -> None:
    rows = shipped_rows()
    rows.append(failed_row("memory", "kivi-2", 4096, "worker was killed by signal 9"))
    parsed = Parsed(page(rows))
    by_key = {row["key"]: row for row in parsed.data["rows"]}
    assert by_key == {row["key"]: row for row in rows}
    said = " ".join(parsed.text)
    flags = {f"{row['kind']}: {flag}" for row in rows for flag in (row[row["kind"]] or {}).get("flags", [])}
    assert flags and flags <= {alert.words for alert in alerts(results(rows))}
    assert all(flag in said for flag in flags)
    assert "worker was killed by signal 9" in said
    opened = {int(at) for line in parsed.named("tr") for at in (line.get("data-rows") or "").split()}
    assert opened == set(range(len(rows)))


def test_the_shipped_sweep_is_one_small_file_that_fetches_nothing(tmp_path: Path) -> None:
    write_report(SMOLLM2, tmp_path, figures=[], tables=["csv"])
    text = (tmp_path / "report.html").read_text()
    parsed = Parsed(text)
    assert len(text.encode()) < FIVE_MB
    for tag, attributes in parsed.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form", "video", "audio")
        assert not attributes.get("src")
        assert (attributes.get("href") or "#")[:1] == "#" or attributes["href"] == "data:,"
    assert not re.search(r"@import|url\(", text.split("<style>")[1].split("</style>")[0])
    policy = next(
        m["content"] for m in parsed.named("meta") if m.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy and policy.count("'sha256-") == len(parsed.named("script")) - 1


def test_without_the_page_no_page(tmp_path: Path) -> None:
    paths = write_report(sweep_rows(contexts=(512,)), tmp_path, figures=[], tables=["csv"], html=False)
    assert [path.name for path in paths] == ["table.csv"] and not (tmp_path / "report.html").exists()


def test_a_folder_of_tasks_alone_has_a_page(tmp_path: Path) -> None:
    paths = write_report([retrieval_row("int4-head", "needle", 512)], tmp_path, figures=[], tables=["csv"])
    assert tmp_path / "report.html" in paths
    parsed = Parsed((tmp_path / "report.html").read_text())
    assert parsed.data["studies"] == [] and "needle" in " ".join(parsed.text)


@pytest.mark.parametrize("label", HOSTILE)
def test_markup_in_names_and_reasons_stays_text(label: str) -> None:
    plain = Parsed(page(hostile_rows("name")))
    parsed = Parsed(page(hostile_rows(label)))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    assert [sorted(names) for _, names in parsed.elements] == [sorted(names) for _, names in plain.elements]
    assert label in " ".join(parsed.text)
    assert label in {row["requested"]["format"] for row in parsed.data["rows"]}


def hostile_rows(label: str) -> list[dict]:
    """``label`` wherever a row may hold a text of its user."""
    one = quality_row(
        label, 512, model=label, values={"flags": [label], label: 1.0}, protocol={"text": label}
    )
    one["effective"]["notes"] = [label]
    one["provenance"] |= {"commit": label, "weights": label}
    return [one, speed_row(label, 512, model=label), failed_row("memory", label, 512, label, model=label)]


@settings(max_examples=15, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_any_label_keeps_the_structure_of_the_page(label: str) -> None:
    parsed = Parsed(page([quality_row(label, 512)]))
    plain = Parsed(page([quality_row("name", 512)]))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    assert parsed.data["rows"][0]["requested"]["format"] == label


def test_equal_rows_in_any_order_make_equal_pages() -> None:
    rows = sweep_rows(contexts=(512, 2048), formats=("fp16", "int4-head", "kivi-2"))
    shuffled = random.Random(3).sample(rows, len(rows))
    assert page(rows) == page(shuffled)


def test_no_rows_one_row_and_only_failures_still_make_pages() -> None:
    assert "There are no result rows here." in page([])
    single = Parsed(page([memory_row("int4-head", 512)]))
    assert len(single.data["rows"]) == 1 and single.data["studies"][0]["charts"][0]["name"] != "pareto"
    failed = [failed_row(kind, "int4-head", 512, f"{kind} broke") for kind in ("quality", "speed", "memory")]
    text = " ".join(Parsed(page(failed)).text)
    assert all(f"{kind} failed: {kind} broke" in text for kind in ("quality", "speed", "memory"))


def test_a_number_that_was_not_measured_is_a_dash_and_sorts_last() -> None:
    rows = [
        quality_row(
            "int4-head", 512, values={"kl_mean": float("nan"), "kl_p99": None, "top1_agreement": 0.5}
        ),
        quality_row("kivi-2", 512),
    ]
    found = results(rows)
    joined = grids(found)[0]
    at = [head.text for head in joined.heads].index("KL")
    cells = {line.format: line.cells[at] for line in joined.lines}
    assert (cells["int4-head"].text, cells["int4-head"].sort) == ("—", None)
    assert cells["kivi-2"].sort == 0.0058
    assert [(line.format, line.verdict) for line in grids(found)[1].lines] == [
        ("int4-head", ""),
        ("kivi-2", ""),
    ]
    assert "NaN" not in page(rows).split('id="data">')[1].split("</script>")[0]


def test_a_kind_that_no_code_knows_gets_its_table_and_its_dialog() -> None:
    one = row("speed", "int4-head", 512, None)
    one |= {
        "kind": "retrieval",
        "retrieval": {"accuracy": 0.75, "samples": 8, "task": "needle", "flags": ["few"]},
    }
    found = results([one, quality_row("int4-head", 512)])
    grid = next(grid for grid in grids(found) if grid.kind == "retrieval")
    shown = {head.text: cell.text for head, cell in zip(grid.heads, grid.lines[0].cells)}
    assert shown == {
        "format": "int4-head", "context": "512", "accuracy": "0.750", "samples": "8", "task": "needle",
        "notes": "few",
    }  # fmt: skip
    assert "retrieval: few" in [alert.words for alert in alerts(found)]
    assert not any("No task was scored" in said for said in limits(found.studies[0], found.kinds))


def retrieval_row(format: str, task: str, context: int, **values: Any) -> dict:
    one = row("speed", format, context, None)
    ends = {"exact_match_low": 0.2, "exact_match_high": 0.8, "exact_match_ref": 1.0, "conclusive": True}
    ends |= {"delta_log_prob": -0.5, "inconclusive_because": None}
    section = {
        "task": task,
        "n": 8,
        "exact_match": 0.5,
        **ends,
        "verdict": "worse",
        "depths": [],
        "flags": [],
    }
    return one | {"kind": "retrieval", "key": f"{format}-{task}-{context}", "retrieval": section | values}


def shown(grid: Any, format: str, context: int) -> dict[str, str]:
    (line,) = (line for line in grid.lines if (line.format, line.context) == (format, context))
    return {head.text: cell.text for head, cell in zip(grid.heads, line.cells)}


def test_tasks_stand_beside_the_other_kinds_and_no_row_is_left_out() -> None:
    rows = [quality_row("int4-head", 512), retrieval_row("int4-head", "needle", 512)]
    rows += [retrieval_row("int4-head", "records", 512, exact_match=0.25, verdict=None)]
    rows += [retrieval_row("kivi-2", "needle", 2048)]  # nothing else was measured there
    found = results(rows)
    joined = grids(found)[0]
    both, alone = shown(joined, "int4-head", 512), shown(joined, "kivi-2", 2048)
    assert (both["needle"], both["records"], both["KL"][:6]) == ("50 [20, 80]", "25 [20, 80]", "0.0058")
    assert both["notes"] == "needle: worse than the exact cache"
    assert (alone["needle"], alone["records"], alone["KL"]) == ("50 [20, 80]", "—", "—")
    assert {at for line in joined.lines for at in line.rows} == set(range(len(rows)))


def test_retrieval_has_words_and_rounded_shares_with_their_intervals() -> None:
    row = retrieval_row("int4-head", "needle", 512, exact_match=2 / 3, p_value=0.03125)
    row["retrieval"] |= {"packed_read_fraction": 0.93300007, "delta_log_prob_low": -0.75}
    row["retrieval"]["delta_log_prob_high"] = -0.25
    grid = next(grid for grid in grids(results([row])) if grid.kind == "retrieval")
    said = shown(grid, "int4-head", 512)
    assert said["right"] == "67 [20, 80]" and said["packed reads"] == "93.3" and said["p"] == "0.0312"
    assert said["Δ log-probability"] == "−0.50 [−0.75, −0.25]"
    assert not any("_" in head or "(low)" in head for head in said)


def test_remarks_stand_by_weight_and_a_strong_drift_is_not_folded_away() -> None:
    rows = []
    for context, drift in ((512, 12), (1024, -104), (2048, 19)):
        rows.append(
            speed_row("fp16", context, values={"flags": [f"memory bandwidth drifted by {drift:+d}%"]})
        )
    told = [(alert.level, alert.words) for alert in alerts(results(rows)) if "drifted" in alert.words]
    assert told == [
        ("caution", "speed: memory bandwidth drifted by -104%"),
        ("flag", "speed: memory bandwidth drifted by +19%"),
        ("flag", "speed: memory bandwidth drifted by +12%"),
    ]


def test_a_plot_speaks_only_of_what_it_draws() -> None:
    rows = [quality_row("int4-head", 512), retrieval_row("int4-head", "needle", 1024, exact_match_ref=None)]
    charts = {chart["name"]: chart for chart in Parsed(page(rows)).data["studies"][0]["charts"]}
    needle, kl = charts["task-needle"], charts["kl"]
    assert needle["title"] == "Retrieval: needle at 1024 tokens" and kl["title"] == "Quality at 512 tokens"
    assert needle["guides"] == [] and "dotted" not in needle["note"] and "ollow" not in needle["note"]


def test_each_task_of_retrieval_has_a_plot_beside_the_exact_cache() -> None:
    chance = {"conclusive": False, "inconclusive_because": "at chance", "verdict": None}
    rows = [
        retrieval_row("int4-head", "needle", 512, exact_match=0.25),
        retrieval_row("int4-head", "needle", 1024, exact_match_ref=0.0, **chance),
        retrieval_row("my-format", "words", 512),
        retrieval_row("int4-head", "needle", 512),
        quality_row("int4-head", 512),
    ]
    rows[3]["requested"]["model"] = "another"
    data = Parsed(page(rows)).data
    (study,) = data["studies"]
    charts = {chart["name"]: chart for chart in study["charts"]}
    needle, words_task = charts["task-needle"], charts["task-words"]
    drawn = [(p["context"], p["y"], p["low"], p["high"], p["hollow"]) for p in needle["points"]]
    assert drawn == [(512, 0.25, 0.2, 0.8, False), (1024, 0.5, 0.2, 0.8, True)]
    assert needle["guides"] == [{"points": [{"x": 512, "y": 1.0}, {"x": 1024, "y": 0.0}]}]
    assert [p["format"] for p in words_task["points"]] == ["my-format"]
    assert {"my-format", "int4-head"} <= {look["label"] for look in study["formats"]}
    assert study["contexts"] == [512, 1024]
    told = {alert.words: alert.where for alert in alerts(results(rows)) if alert.level == "caution"}
    (where,) = told.values()
    assert "int4-head of smollm2-135m-instruct-q4_1 at 512" in where and not any(
        "1024" in one for one in where
    )


def test_the_words_name_damage_cost_size_and_speed_with_intervals() -> None:
    common = {"kl_low": None, "kl_high": None}
    rows = [
        quality_row(
            "int8-head",
            512,
            values=common | {"kl_mean": 1e-5, "delta_nll_low": -0.001, "delta_nll_high": 0.002},
        ),
        quality_row("int4-head", 512, values=common | {"kl_mean": 0.006, "delta_nll_low": 0.006}),
        quality_row("kivi-2", 512, values=common | {"kl_mean": 0.2}),
        memory_row("int8-head", 512, values={"ratio_to_16bit": 0.6}),
        memory_row("int4-head", 512, values={"ratio_to_16bit": 0.35}),
        speed_row(
            "int8-head",
            512,
            engine="native",
            values={"ratio_to_baseline": 0.7, "ratio_low": 0.6, "ratio_high": 0.8},
        ),
        speed_row(
            "int4-head",
            512,
            engine="native",
            values={"ratio_to_baseline": 0.75, "ratio_low": 0.7, "ratio_high": 0.9},
        ),
    ]
    (study,) = results(rows).studies
    said = words(study)
    assert said.lead == (
        "Damaged, with a mean KL of 0.1 nats per token or more at some context: kivi-2.",
        "No cost in perplexity that these windows can tell from zero: int8-head "
        "(ΔNLL at most 0.0020 nats per token).",
        "A small cost in perplexity: int4-head.",
        "The smallest cache weighed among sound formats is that of int4-head, 0.35 × 16 bits.",
        "The fastest timed is int8-head, at 0.70 [0.60, 0.80] of DynamicCache's decode time; "
        "the intervals do not tell int4-head from it.",
    )
    assert {item.label: item.badge for item in said.items} == {
        "int8-head": "",
        "int4-head": "",
        "kivi-2": "damaged",
    }
    told = limits(study, ["quality", "speed", "memory"])
    assert "Not timed: kivi-2." in told and "Not weighed: kivi-2." in told


def test_damage_is_marked_in_the_table_of_quality_and_in_no_other() -> None:
    rows = [
        quality_row("kivi-2", 512, values={"kl_mean": 0.3}),
        quality_row("fp16", 512),
        memory_row("kivi-2", 512),
    ]
    tables = {
        grid.kind: [(line.format, line.verdict) for line in grid.lines] for grid in grids(results(rows))
    }
    assert tables["quality"] == [("fp16", ""), ("kivi-2", "unfit")]
    assert tables[JOINED] == [("fp16", ""), ("kivi-2", "unfit")] and tables["memory"] == [("kivi-2", "")]


def test_times_of_the_reference_engine_are_no_speed_claim_anywhere() -> None:
    rows = [quality_row("int4-head", 512), speed_row("int4-head", 512, values={"ratio_to_baseline": 0.1})]
    found = results(rows)
    (study,) = found.studies
    assert not any("fastest" in sentence for sentence in words(study).lead)
    assert any("no speed claim" in str(sentence) for sentence in words(study).items[0].sentences)
    assert any("no speed claim" in alert.words for alert in alerts(found))
    charts = Parsed(page(rows)).data["studies"][0]["charts"]
    points = next(chart for chart in charts if chart["name"] == "decode_ms")["points"]
    assert {point["format"]: point["hollow"] for point in points} == {
        "DynamicCache": False,
        "int4-head": True,
    }


def test_rows_of_one_cell_by_two_versions_are_told() -> None:
    old, new = quality_row("int4-head", 512), quality_row("int4-head", 512, values={"kl_mean": 0.5})
    new["key"] = "another"
    new["provenance"] |= {"quantkv": "0.2.0", "started": "2032-01-01T00:00:00+00:00"}
    told = {alert.words: alert.where for alert in alerts(results([old, new]))}
    (twice,) = (where for said, where in told.items() if "more than once" in said)
    assert twice == ("quality of int4-head at 512: 2 rows, quantkv 0.2.0 (no commit), 0.1.0 (no commit)",)
    assert told["rows were made by different software"] == ("quantkv: 0.1.0, 0.2.0",)


def test_points_lead_to_the_rows_behind_them() -> None:
    rows = sweep_rows(contexts=(512, 2048), formats=("int4-head", "kivi-2"))
    data = Parsed(page(rows)).data
    kinds = {"kl": "quality", "memory": "memory", "decode_ms": "speed"}
    for chart in data["studies"][0]["charts"]:
        for point in chart["points"]:
            behind = [data["rows"][at] for at in point["rows"]]
            assert {one["requested"]["context"] for one in behind} == {point["context"]}
            wanted = {"quality", "speed", "memory"} if chart["name"] == "pareto" else {kinds[chart["name"]]}
            assert {one["kind"] for one in behind} == wanted


def test_studies_are_kept_apart_and_named() -> None:
    rows = [*sweep_rows(contexts=(512,)), *sweep_rows(contexts=(512,), dtype="bfloat16")]
    data = Parsed(page(rows)).data
    names = [study["name"] for study in data["studies"]]
    assert len(set(names)) == 2 and all(
        any(dtype in name for name in names) for dtype in ("float32", "bfloat16")
    )
    joined = grids(results(rows))[0]
    assert joined.kind == JOINED and "study" in [head.text for head in joined.heads]


def test_names_of_numbers_become_words_and_units() -> None:
    assert heading("prefill_peak_bytes") == ("prefill peak", "MiB", 2.0**-20)
    assert heading("decode_ms_p10") == ("decode p10", "ms", 1.0)
    assert heading("decode_tokens_per_s") == ("decode", "tokens/s", 1.0)
    assert heading("kl_low") == ("KL (low)", "nats/token", 1.0)
    assert heading("steps") == ("steps", "", 1.0)


def test_colours_are_those_of_the_figures_and_readable_in_the_dark() -> None:
    labels = ["int4-head", "kivi-2", "my-format"]
    assert {look["label"]: look["light"] for look in looks(labels, "f")} == {
        label: style.color for label, style in styles_for(["DynamicCache", *labels]).items()
    }
    for style in styles_for([*STYLES, *(f"mine {index}" for index in range(12))]).values():
        assert contrast(dark_color(style.color), DARK_BACKGROUND) >= MIN_CONTRAST
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(
        4.48, abs=0.005
    )  # the usual example of a near miss


def test_markers_are_the_outlines_of_the_figures() -> None:
    assert outline("o") is None
    diagonal = round(0.5**0.5, 3)
    assert {tuple(corner) for corner in outline("s") or []} == {
        (x, y) for x in (-diagonal, diagonal) for y in (-diagonal, diagonal)
    }
    assert {tuple(corner) for corner in outline("D") or []} == {
        (1.0, 0.0),
        (-1.0, 0.0),
        (0.0, 1.0),
        (0.0, -1.0),
    }
    assert len(outline("p") or []) == 5 and len(outline("h") or []) == 6 and len(outline("*") or []) == 10
    top = min(outline("^") or [], key=lambda corner: corner[1])
    assert top[0] == 0.0  # a triangle that points up, with y downwards as on a page
