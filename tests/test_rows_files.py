"""Result files: whole or absent, strict JSON, one frame."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkv.errors import QuantKVError
from quantkv.rows.files import read_rows, row_name, write_row
from quantkv.rows.frames import load_results, to_frame
from quantkv.rows.row import strict_json
from quantkv.sweep.answers import Tried

REQUESTED = {"model": "m", "revision": None, "dtype": "float32", "attn": "quantkv", "format": "int8-head"}
REQUESTED |= {"spec": "int8-head", "context": 64, "batch": 1, "seed": 0}


def row(key: str = "a" * 64, status: str = "ok", **changes: Any) -> dict[str, Any]:
    section = {"kl_mean": 0.5, "windows": [{"start": 0}], "flags": []} if status == "ok" else None
    made: dict[str, Any] = {"schema": 1, "kind": "quality", "key": key, "status": status, "reason": None}
    made |= {"requested": REQUESTED, "effective": {"engine": "reference"}, "protocol": {"prefill": "exact"}}
    made |= {"quality": section, "speed": None, "memory": None}
    return (
        made
        | {"provenance": {"weights": "float32", "threads": 2, "machine": {"cpu": "x", "gpu": None}}}
        | changes
    )


def test_names_hold_only_safe_characters() -> None:
    odd = row(requested=REQUESTED | {"format": "My Mix/é k.int8@g32+v.int4"})
    assert row_name(odd) == "quality-my-mix-k.int8@g32+v.int4-c64-aaaaaaaaaaaa.json"


def test_a_row_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = write_row(row(), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert read_rows(tmp_path) == [row()]
    assert read_rows(path) == [row()]


def test_a_later_row_replaces_the_earlier_even_under_another_label(tmp_path: Path) -> None:
    write_row(row(status="failed"), tmp_path)
    write_row(row(requested=REQUESTED | {"format": "other"}), tmp_path)
    (only,) = read_rows(tmp_path)
    assert (only["status"], only["requested"]["format"]) == ("ok", "other")
    assert len(list(tmp_path.iterdir())) == 1


def test_per_token_arrays_lie_beside_the_row(tmp_path: Path) -> None:
    path = write_row(row(), tmp_path, tokens={"kl": np.array([0.5, 1.5])})
    assert np.load(path.with_suffix(".npz"))["kl"].tolist() == [0.5, 1.5]
    write_row(row(requested=REQUESTED | {"format": "other"}), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_no_nan_or_infinity_reaches_a_file(tmp_path: Path) -> None:
    section = {
        "a": math.nan,
        "b": [math.inf, np.float32(2.5)],
        "c": np.int64(3),
        "d": np.bool_(True),
        "e": np.nan,
    }
    text = write_row(row(quality=section), tmp_path).read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads(text)["quality"] == {"a": None, "b": [None, 2.5], "c": 3, "d": True, "e": None}
    assert strict_json({1: (-math.inf,)}) == {"1": [None]}


def test_the_revision_found_is_what_the_frame_says() -> None:
    found = row(provenance={"revision": "sha256:ab", "weights": "float32"})
    assert to_frame([found, row()])["revision"].fillna("none").tolist() == ["sha256:ab", "none"]


@pytest.mark.parametrize(
    "changes",
    [
        {"requested": {}},
        {"requested": REQUESTED | {"context": None}},
        {"requested": REQUESTED | {"format": 4}},
    ]
    + [{part: "text"} for part in ("effective", "protocol", "provenance")],
)
def test_a_row_of_another_shape_is_none_of_ours(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "odd.json").write_text(json.dumps(row(**changes)))
    with pytest.warns(UserWarning, match="not a quantkv result"):
        assert read_rows(tmp_path) == []


def test_a_file_that_goes_or_leads_nowhere_stops_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "quality-x-c64-bbbbbbbbbbbb.json").symlink_to(tmp_path / "nowhere")
    written = write_row(row(), tmp_path)
    tried = Tried(tmp_path)
    assert tried.status("quality", "a" * 64) == "ok"
    written.unlink()
    assert tried.status("quality", "a" * 64) is None


def test_truncated_and_foreign_files_are_reported_once_and_left_alone(tmp_path: Path) -> None:
    whole = write_row(row(), tmp_path)
    cut = tmp_path / "quality-int4-head-c64-bbbbbbbbbbbb.json"
    cut.write_text(whole.read_text()[:200])
    (tmp_path / "notes.json").write_text('{"schema": 7}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    said: list[str] = []
    assert read_rows(tmp_path, warn=said.append) == [row()]
    assert sorted(line.split(" ")[0] for line in said) == ["binary.json", "list.json", "notes.json", cut.name]
    assert cut.exists()


def test_an_ok_row_without_its_section_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(row(quality=None)))
    with pytest.warns(UserWarning, match="x.json"):
        assert read_rows(tmp_path) == []


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match="does not exist"):
        load_results(tmp_path / "none")


def test_the_frame_has_the_settings_and_every_single_number(tmp_path: Path) -> None:
    write_row(row(), tmp_path)
    write_row(row(key="b" * 64, status="failed", reason="broke"), tmp_path)
    frame = load_results(tmp_path).set_index("status")
    assert frame.loc["ok", "kl_mean"] == 0.5
    assert math.isnan(frame.loc["failed", "kl_mean"]) and frame.loc["failed", "reason"] == "broke"
    expected = {"format": "int8-head", "weights": "float32", "prefill": "exact", "engine": "reference"}
    assert {name: frame.loc["ok", name] for name in expected} == expected
    assert (frame.loc["ok", "machine"], frame.loc["ok", "threads"]) == ("x", 2)
    assert "windows" not in frame.columns


def test_an_empty_frame_still_has_its_columns() -> None:
    assert {"kind", "status", "format", "context", "engine"} <= set(to_frame([]).columns)
