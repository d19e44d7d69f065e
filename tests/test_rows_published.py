"""Numbers of others: what is taken, what is refused, and that no table mixes them with ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rows as made
from typer.testing import CliRunner

from quantkv.commands.cli import app
from quantkv.errors import QuantKVError
from quantkv.report.tables import markdown_table
from quantkv.rows.files import read_rows
from quantkv.rows.frames import load_results
from quantkv.rows.published import external_rows, import_file
from quantkv.studies.columns import best_labels, shown_columns
from quantkv.studies.study import studies

ENTRY = {"model": "M", "format": "KIVI-2", "context": 2048, "perplexity": 5.5, "bits_packed": 2.25}


def written(folder: Path, content: Any, name: str = "theirs.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_csv_becomes_a_row_for_each_kind_of_number(tmp_path: Path) -> None:
    header = "model,format,context,perplexity,decode_ms_median,batch"
    text = f"{header}\nM,theirs,2048,5.5,3.25,2\nM,other,1024,6.0,,\n"
    quality, speed, other = external_rows(written(tmp_path, text, "theirs.csv"), "a paper, table 3")
    assert (quality["kind"], speed["kind"], other["kind"]) == ("quality", "speed", "quality")
    assert quality["quality"] == {"perplexity": 5.5, "flags": []}
    assert speed["speed"]["decode_ms_median"] == 3.25
    assert quality["requested"]["context"] == 2048 and quality["requested"]["batch"] == 2
    assert quality["provenance"] == {"source": "external", "citation": "a paper, table 3"}
    assert quality["effective"]["engine"] == "external"
    assert other["requested"]["batch"] == 1


@pytest.mark.parametrize(
    ("source", "own", "kept"),
    [
        ("KIVI (2024)", "table 3", "KIVI (2024), table 3"),
        ("KIVI (2024)", "", "KIVI (2024)"),
        (None, "table 3", "table 3"),
        ("KIVI (2024)", " KIVI (2024)", "KIVI (2024)"),
    ],
)
def test_the_source_of_a_file_and_of_an_entry_are_both_kept(
    tmp_path: Path, source: str | None, own: str, kept: str
) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text(f"model,format,context,perplexity,citation\nLlama,KIVI-2,4096,5.5,{own}\n")
    (row,) = external_rows(file, source)
    assert row["provenance"]["citation"] == kept


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_lists_of_mappings_carry_their_own_citation(tmp_path: Path, suffix: str) -> None:
    entries = [ENTRY | {"source": "external", "citation": "its own page"}, ENTRY | {"format": "other"}]
    own, given = external_rows(written(tmp_path, entries, f"theirs.{suffix}"), "a paper")
    assert own["provenance"]["citation"] == "a paper, its own page"
    assert given["provenance"]["citation"] == "a paper"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model": None}, "entry 1: model is required"),
        ({"context": 0}, "context: 0 must be a whole number"),
        ({"context": "2k"}, "context: '2k' must be a whole number"),
        ({"perplexity": "low"}, "perplexity: 'low' is no number"),
        ({"perplexity": True}, "perplexity: True is no number"),
        ({"perplexity": -1}, "must be finite and not negative"),
        ({"perplexity": "nan"}, "must be finite"),
        ({"top1_agreement": 98}, "share from 0 to 1"),
        ({"ppl": 5}, "unknown setting 'ppl'; legal: model, format, context"),
        ({"kl_low": 0.1}, "kl_low: intervals of others are not imported"),
        ({"delta_nll_high": 0.1}, "intervals of others are not imported"),
        ({"perplexity": None, "bits_packed": None}, "holds no number"),
        ({"source": "KIVI"}, "source can only be external"),
    ],
)
def test_a_wrong_entry_says_which_and_why(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(QuantKVError, match=complaint):
        external_rows(written(tmp_path, [ENTRY | change]), "a paper")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("theirs.xlsx", "x", "legal: .csv, .json, .yaml"),
        ("theirs.json", "{", "is not valid"),
        ("theirs.yaml", "a: [", "is not valid"),
        ("theirs.json", "{}", "must hold a list of mappings"),
        ("theirs.json", "[" * 100_000, "is not valid"),
        ("theirs.csv", "model,format,context\n", "holds no entries"),
        ("theirs.csv", "model,format,context,kl_mean\na,b,9,0.1,7\n", "line 2: has more values than"),
    ],
)
def test_a_wrong_file_says_what_is_legal(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    with pytest.raises(QuantKVError, match=complaint):
        external_rows(written(tmp_path, content, name), "a paper")


def test_without_a_source_nothing_is_taken(tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match="not where it is from"):
        external_rows(written(tmp_path, [ENTRY]))


def test_the_command_writes_rows_that_load_as_results(tmp_path: Path) -> None:
    file, out = written(tmp_path, [ENTRY]), tmp_path / "results"
    arguments = ["import", str(file), "--source", "a paper", "--out", str(out)]
    for _ in range(2):  # the same numbers are the same rows
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0 and "1 rows imported" in done.output
    (row,) = read_rows(out)
    assert row["quality"]["perplexity"] == 5.5
    assert list(load_results(out)["perplexity"]) == [5.5]
    refused = CliRunner().invoke(app, ["import", str(file), "--out", str(out)])
    assert refused.exit_code == 2 and "give --source" in refused.output


def test_the_rows_imported_in_json(tmp_path: Path) -> None:
    file, out = written(tmp_path, [ENTRY]), tmp_path / "results"
    done = CliRunner().invoke(app, ["import", str(file), "--source", "a paper", "--out", str(out), "--json"])
    told = json.loads(done.stdout)
    assert told["rows"] == read_rows(out) and told["rows"][0]["quality"]["perplexity"] == 5.5
    assert told["files"] == [str(path) for path in out.glob("quality-*.json")]


def test_no_table_mixes_theirs_with_ours(tmp_path: Path) -> None:
    """The same model, context and precision: still two tables, and nothing of theirs is ranked."""
    ours = [made.quality_row("int4-head", 2048), made.speed_row("int4-head", 2048)]
    asked = ours[0]["requested"]
    entry = ENTRY | {name: asked[name] for name in ("model", "dtype", "batch", "context")} | {"kl_mean": 0.5}
    entries = [entry, entry | {"format": "better", "kl_mean": 0.001}]
    import_file(written(tmp_path, entries), tmp_path / "out", "a paper")
    theirs = read_rows(tmp_path / "out")
    found = studies([*ours, *theirs])
    assert [len(study.rows) for study in found] == [2, 2]
    table = next(study for study in found if "external" in markdown_table(study))
    text = markdown_table(table)
    assert "KIVI-2 (external)" in text and "From a paper; not measured here" in text
    assert "5.50" in text and "int4-head" not in text
    records = table.records()
    assert all(not best_labels(column, records) for column in shown_columns(records))
    assert {record["verdict"] for record in records} == {""}
    assert all(record["kl_low"] != record["kl_low"] for record in records)  # NaN: no interval
