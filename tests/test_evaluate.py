"""`evaluate`: rows of the schema from a loaded model."""

import json

import pytest

from quantkv import evaluate, load_model, parse_spec
from quantkv.data import Text
from quantkv.errors import QuantKVError
from quantkv.instruments import timing
from quantkv.rows.kinds import versions
from quantkv.rows.row import SCHEMA

TEXT = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
SMALL = "int4-head+r8+f16+s2+k8"
FAST = {"text": TEXT, "windows": 2, "score": 16}


@pytest.fixture(scope="module")
def loaded():
    return load_model("random-llama")


def half(x):
    return x.half().to(x.dtype)


def test_a_row_per_format_and_context(loaded):
    result = evaluate(*loaded, [SMALL, parse_spec("fp16"), half], contexts=[96, 160], **FAST)
    assert [(r["requested"]["format"], r["requested"]["context"]) for r in result.rows] == [
        (name, context) for context in (96, 160) for name in (SMALL, "fp16", "half")
    ]
    row = result.rows[0]
    assert (row["schema"], row["kind"], row["status"], row["reason"]) == (SCHEMA, "quality", "ok", None)
    assert row["requested"]["model"] == "random-llama" and row["requested"]["spec"] == SMALL
    assert row["protocol"] == {
        "text": "words",
        "text_sha256": "f" * 64,
        "prefill": "exact",
        "score": 16,
        "windows": 2,
        "span": 160,
        "bos": "none",
    }
    assert row["speed"] is None and row["memory"] is None
    assert row["provenance"]["metrics"] == versions()
    assert row["provenance"]["weights"] == "random float32"
    assert result.rows[2]["effective"]["simulated"] is True
    json.dumps(result.rows, allow_nan=False)


def test_all_contexts_score_the_same_targets(loaded):
    result = evaluate(*loaded, [SMALL], contexts=[96, 160], **FAST)
    starts = [[w["start"] for w in row["quality"]["windows"]] for row in result.rows]
    assert starts[0] == starts[1]


def test_keys_tell_cells_apart_and_repeat(loaded):
    first, again = (evaluate(*loaded, [SMALL, "fp16"], contexts=[96], **FAST).rows for _ in range(2))
    other = evaluate(*loaded, [SMALL], contexts=[96], seed=1, **FAST).rows
    assert [row["key"] for row in first] == [row["key"] for row in again]
    assert len({row["key"] for row in [*first, *other]}) == 3


def test_the_frame_has_the_columns_of_load_results(loaded):
    frame = evaluate(*loaded, {"mine": SMALL}, contexts=[96], **FAST).to_frame()
    line = frame.iloc[0]
    assert (line["format"], line["kind"], line["context"]) == ("mine", "quality", 96)
    assert line["kl_mean"] > 0 and line["tokens_scored"] == 32 and line["weights"] == "random float32"


def test_speed_and_failures_are_rows_too(loaded, monkeypatch):
    monkeypatch.setattr(timing, "PROBE_BYTES", 1 << 20)
    with pytest.warns(UserWarning, match="speed of half at 40: .* no speed"):
        rows = evaluate(
            *loaded, [SMALL, half], contexts=[40], kinds=["speed"], rounds=1, block=3, **FAST
        ).rows
    assert [(row["kind"], row["status"]) for row in rows] == [("speed", "ok"), ("speed", "skipped")]
    assert rows[0]["speed"]["steps"] == 2 and rows[1]["speed"] is None


@pytest.mark.parametrize(
    "formats, options, message",
    [
        ("int4-head", {}, "must be a list"),
        (["int5-hed"], {}, "int5-hed"),
        ([lambda x: x, lambda x: 2 * x], {}, "two formats are called '<lambda>'"),
        (["fp16"], {"kinds": ["sped"]}, "kinds: unknown 'sped'; legal: quality, speed, memory"),
        (["fp16"], {"contexts": [100_000]}, "the text is too short"),
    ],
)
def test_wrong_input_is_one_clear_error(loaded, formats, options, message):
    with pytest.raises(QuantKVError, match=message):
        evaluate(*loaded, formats, **({"contexts": [96]} | FAST | options))


@pytest.mark.long("memory is measured by a worker that loads the model anew")
def test_memory_of_a_model_that_is_built_in(loaded):
    (row,) = evaluate(*loaded, [SMALL], contexts=[96], text=TEXT, kinds=["memory"]).rows
    assert (row["status"], row["reason"], row["requested"]["revision"]) == ("ok", None, None)
    assert row["memory"]["held_bytes"] > 0
