"""Comparing rows: which belong together, what may be said of a change, and the exit code that follows."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import failed_row, memory_row, quality_row, speed_row
from scipy import stats
from typer.testing import CliRunner, Result

import quantkv
from quantkv.commands.cli import app
from quantkv.comparison.table import comparison_lines
from quantkv.errors import QuantKVError
from quantkv.instruments.statistics import wilson
from quantkv.rows.files import write_row
from quantkv.studies.changes import Estimate, unpaired_difference, unpaired_factor

Row = dict[str, Any]
TOKENS = 128


def quality(gaps: list[float], kls: list[float] | None = None, *, start: int = 0, **options: Any) -> Row:
    """A row whose windows cost these nats per token against a reference of 2 nats."""
    kls = kls or [0.01] * len(gaps)
    windows = [
        {
            "start": start + 1000 * i,
            "n": TOKENS,
            "sum_nll": TOKENS * (2 + gap),
            "sum_nll_ref": TOKENS * 2.0,
            "sum_kl": TOKENS * kl,
        }
        for i, (gap, kl) in enumerate(zip(gaps, kls, strict=True))
    ]
    values = {"windows": windows, "nll_ref": 2.0, "floor_path_kl": 0.0, "cache_bytes": 1000}
    values |= {"delta_nll": sum(gaps) / len(gaps), "kl_mean": sum(kls) / len(kls)}
    protocol = {"windows": len(gaps)}
    return quality_row("int4-head", 512, values=values, protocol=protocol, **options)


def change_of(found: Any, metric: str) -> Any:
    (change,) = [c for pair in found.pairs for c in pair.changes if c.metric == metric]
    return change


GAPS_A = [0.010, 0.012, 0.008, 0.011, 0.009, 0.010, 0.013, 0.007]
GAPS_B = [0.031, 0.030, 0.027, 0.034, 0.029, 0.028, 0.036, 0.026]


def test_windows_of_the_same_places_are_paired() -> None:
    found = quantkv.compare([quality(GAPS_A)], [quality(GAPS_B)])
    change = change_of(found, "delta_nll")
    moved = [b - a for a, b in zip(GAPS_A, GAPS_B)]
    interval = stats.ttest_1samp(moved, 0).confidence_interval(0.95)
    assert change.change == pytest.approx(sum(moved) / 8)
    assert (change.low, change.high) == pytest.approx((interval.low, interval.high))
    assert change.verdict == "worse" and change.how == "paired over 8 windows"
    assert found.exit_code == 12


def test_windows_of_other_places_are_not_paired() -> None:
    a = quality(GAPS_A, start=0)
    b = quality(GAPS_B, start=7)
    a["quality"] |= {"delta_nll": 0.010, "delta_nll_low": 0.006, "delta_nll_high": 0.013}
    b["quality"] |= {"delta_nll": 0.030, "delta_nll_low": 0.026, "delta_nll_high": 0.038}
    change = change_of(quantkv.compare([a], [b]), "delta_nll")
    assert change.low == pytest.approx(0.020 - math.hypot(0.004, 0.003))
    assert change.high == pytest.approx(0.020 + math.hypot(0.008, 0.004))
    assert "unpaired" in change.how and change.verdict == "worse"


def test_another_text_or_number_of_windows_is_never_paired() -> None:
    fewer = quantkv.compare([quality(GAPS_A)], [quality(GAPS_A[:7])])
    assert "unpaired" in change_of(fewer, "kl_mean").how
    assert "windows 8 → 7" in fewer.pairs[0].differences
    other = quality(GAPS_B)
    other["protocol"]["text_sha256"] = "0" * 64
    with pytest.raises(QuantKVError, match="nothing to compare"):
        quantkv.compare([quality(GAPS_A)], [other])


def test_few_windows_give_no_interval_and_no_verdict() -> None:
    change = change_of(quantkv.compare([quality(GAPS_A[:7])], [quality(GAPS_B[:7])]), "delta_nll")
    assert change.verdict == "not judged" and change.low is None
    assert "fewer than 8" in change.how


def test_a_kl_within_the_floor_of_the_path_is_no_change() -> None:
    a = quality(GAPS_A, [1e-9] * 8)
    b = quality(GAPS_A, [1.5e-9 + 1e-12 * i for i in range(8)])
    assert change_of(quantkv.compare([a], [b]), "kl_mean").verdict == "worse"
    b["quality"]["floor_path_kl"] = 1e-9
    assert change_of(quantkv.compare([a], [b]), "kl_mean").verdict == "no difference shown"


def test_a_number_that_is_no_longer_finite_is_worse() -> None:
    broken = quality(GAPS_A)
    broken["quality"] |= {"kl_mean": None, "delta_nll": None}
    for window in broken["quality"]["windows"]:
        window |= {"sum_kl": None, "sum_nll": None}
    assert change_of(quantkv.compare([quality(GAPS_A)], [broken]), "kl_mean").verdict == "worse"
    assert change_of(quantkv.compare([broken], [quality(GAPS_A)]), "kl_mean").verdict == "not judged"


def test_rows_that_are_equal_are_the_same() -> None:
    rows = [quality(GAPS_A), speed_row("int4-head", 512), memory_row("int4-head", 512)]
    found = quantkv.compare(rows, copy.deepcopy(rows))
    assert set(found.verdicts) == {"same"} and found.exit_code == 0
    assert found.origins == [] and found.only_a == found.only_b == []


OPPOSITE = {"worse": "better", "better": "worse"}
NATS = st.floats(0, 1, allow_nan=False).map(lambda x: round(x, 6))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NATS, NATS), min_size=8, max_size=15))
def test_the_other_way_round_is_the_opposite(pairs: list[tuple[float, float]]) -> None:
    a, b = ([quality([pair[i] for pair in pairs])] for i in (0, 1))
    there, back = (change_of(quantkv.compare(*x), "delta_nll") for x in ((a, b), (b, a)))
    assert back.verdict == OPPOSITE.get(there.verdict, there.verdict)
    assert back.change == pytest.approx(-there.change, abs=1e-12)
    assert back.low == pytest.approx(-there.high, abs=1e-9)


def test_unpaired_shares_get_newcombes_interval() -> None:
    """56 of 70 against 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, method 10)."""
    a, b = Estimate(48 / 80, *wilson(48, 80)), Estimate(56 / 70, *wilson(56, 70))
    low, high = unpaired_difference(a, b)
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert unpaired_difference(a, Estimate(0.5, None, None)) == (None, None)


def test_factors_are_judged_on_a_logarithmic_scale() -> None:
    low, high = unpaired_factor(Estimate(2, 1, 4), Estimate(8, 4, 16))
    half = math.hypot(math.log(2), math.log(2))
    assert (low, high) == pytest.approx((4 * math.exp(-half), 4 * math.exp(half)))


def speed(ratio: float, half: float, **options: Any) -> Row:
    values = {"ratio_to_baseline": ratio, "ratio_low": ratio - half, "ratio_high": ratio + half}
    return speed_row("int4-head", 512, values=values, engine="native-v4", **options)


def test_a_slower_format_is_worse_where_intervals_allow_it() -> None:
    slower = change_of(quantkv.compare([speed(1.0, 0.02)], [speed(1.3, 0.03)]), "ratio_to_baseline")
    assert slower.verdict == "worse" and slower.change == pytest.approx(1.3)
    unclear = change_of(quantkv.compare([speed(1.0, 0.4)], [speed(1.3, 0.4)]), "ratio_to_baseline")
    assert unclear.verdict == "no difference shown"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"machine": {"cpu": "another", "cores": 2, "ram_gb": 15.6, "gpu": None}}, "another machine"),
        ({"machine": None}, "without the machine"),
        ({"device": "cuda"}, "another device: cpu and cuda"),
    ],
)
def test_speed_on_other_machines_is_not_compared(change: Row, why: str) -> None:
    other = speed(2.0, 0.01)
    other["provenance"] |= change
    found = quantkv.compare([speed(1.0, 0.01)], [other])
    assert why in (found.pairs[0].obstacle or "") and found.pairs[0].changes == []
    assert found.exit_code == 0


def test_speed_with_other_threads_or_on_the_reference_engine_is_not_compared() -> None:
    threads = quantkv.compare([speed(1, 0.01)], [speed(2, 0.01, protocol={"threads": 1})])
    assert threads.pairs[0].obstacle == "speed on another number of threads: 2 and 1"
    slow = quantkv.compare([speed(1, 0.01)], [speed_row("int4-head", 512, engine="reference")])
    assert slow.pairs[0].obstacle == "the reference engine makes no speed claim"
    memory = speed(1, 0.01)
    memory["provenance"]["machine"] = memory["provenance"]["machine"] | {"ram_gb": 500.0}
    assert quantkv.compare([speed(1, 0.01)], [memory]).pairs[0].obstacle is None


def test_memory_is_exact() -> None:
    def held(count: int) -> list[Row]:
        return [memory_row("int4-head", 512, values={"held_bytes": count})]

    more = change_of(quantkv.compare(held(1000), held(1001)), "held_bytes")
    assert (more.verdict, more.change, more.how) == ("worse", 1, "exact")
    assert change_of(quantkv.compare(held(1000), held(999)), "held_bytes").verdict == "better"


def test_other_versions_of_metrics_and_numbers_of_others_are_not_compared() -> None:
    other = quality(GAPS_B)
    other["provenance"]["metrics"] = {"quality": 2}
    assert "versions 1 and 2" in str(quantkv.compare([quality(GAPS_A)], [other]).pairs[0].obstacle)
    theirs = quality(GAPS_B)
    theirs["provenance"] = {"source": "external", "citation": "a paper"}
    assert "by others in B" in str(quantkv.compare([quality(GAPS_A)], [theirs]).pairs[0].obstacle)


def test_a_cell_that_broke_is_exit_code_3_and_one_that_was_mended_0() -> None:
    broken = failed_row("quality", "int4-head", 512, "out of memory", protocol={"windows": 8})
    found = quantkv.compare([quality(GAPS_A)], [broken])
    assert found.exit_code == 3 and found.pairs[0].obstacle == "failed in B: out of memory"
    assert quantkv.compare([broken], [quality(GAPS_A)]).exit_code == 0


def test_rows_meet_their_own_kind_context_batch_seed_and_prefill() -> None:
    rows = [
        quality(GAPS_A),
        quality(GAPS_A, seed=1),
        quality_row("int4-head", 2048),
        quality_row("int4-head", 512, protocol={"prefill": "stream"}),
        speed_row("int4-head", 512),
        speed_row("int4-head", 512, batch=4),
        memory_row("int4-head", 512),
    ]
    found = quantkv.compare(rows, list(reversed(copy.deepcopy(rows))))
    assert len(found.pairs) == len(rows) and found.only_a == []
    assert all(pair.a == pair.b for pair in found.pairs)


def test_the_same_sample_is_preferred_to_another() -> None:
    a, same, other = quality(GAPS_A), quality(GAPS_B), quality(GAPS_B[:7])
    found = quantkv.compare([a], [other, same])
    assert found.pairs[0].b is same and found.only_b == [other]


def of_weights(row: Row, letter: str) -> Row:
    return {**row, "provenance": {**row["provenance"], "fingerprint": letter * 64}}


@pytest.mark.parametrize("order", [1, -1])
def test_two_checkpoints_of_one_name_meet_their_own_rows(order: int) -> None:
    """Whichever comes first, and although rows of the other checkpoint ask for the very same."""
    a = [of_weights(quality(GAPS_A), "1"), of_weights(quality(GAPS_B), "2")]
    b = [of_weights(quality(GAPS_B), "2"), of_weights(quality(GAPS_A), "1"), of_weights(quality(GAPS_B), "3")]
    found = quantkv.compare(a, b[::order])
    assert all(pair.a["quality"] == pair.b["quality"] for pair in found.pairs)
    assert len(found.pairs) == 2
    assert found.origins == []
    assert [row["provenance"]["fingerprint"] for row in found.only_b] == ["3" * 64]


def test_a_newer_checkpoint_is_compared_with_an_older_and_said() -> None:
    found = quantkv.compare([of_weights(quality(GAPS_A), "1")], [of_weights(quality(GAPS_B), "2")])
    assert len(found.pairs) == 1
    assert [origin.field for origin in found.origins] == ["fingerprint"]


def test_rows_that_do_not_state_their_weights_meet_any() -> None:
    found = quantkv.compare([quality(GAPS_A)], [of_weights(quality(GAPS_B), "2")])
    assert len(found.pairs) == 1


def test_formats_are_compared_on_the_same_weights_only() -> None:
    ours = [of_weights(quality_row("int8-head", 512), letter) for letter in "12"]
    theirs = [of_weights(quality_row("int4-head", 512), letter) for letter in "21"]
    found = quantkv.compare([*ours, *theirs], formats=["int8-head", "int4-head"])
    assert [pair.a["provenance"]["fingerprint"] for pair in found.pairs] == ["1" * 64, "2" * 64]
    assert all(pair.a["provenance"] == pair.b["provenance"] for pair in found.pairs)
    with pytest.raises(QuantKVError, match="fingerprint 111111111111… → 222222222222…"):
        quantkv.compare([ours[0], theirs[0]], formats=["int8-head", "int4-head"])


def test_what_is_in_one_only_and_where_rows_come_from() -> None:
    newer = quality(GAPS_A)
    newer["provenance"] |= {"torch": "2.14.0", "commit": "abc"}
    found = quantkv.compare([quality(GAPS_A), memory_row("kivi-2", 512)], [newer])
    assert [row["requested"]["format"] for row in found.only_a] == ["kivi-2"]
    (origin,) = found.origins  # one commit is unknown, so nothing is said of it
    assert (origin.field, origin.a, origin.b, origin.pairs) == ("torch", "2.13.0", "2.14.0", 1)


def filled(fill: str, format: str = "int4-head", **options: Any) -> Row:
    return speed_row(format, 512, protocol={"fill": fill}, **options)


def test_rows_that_were_asked_for_otherwise_say_in_what(tmp_path: Path) -> None:
    """Two formats were filled otherwise in b, one has no row there at all; memory is what can be compared."""
    ours = [filled("prefill", name) for name in ("int4-head", "int8-head", "kivi-2")]
    theirs = [filled("synthetic", name) for name in ("int8-head", "int4-head")]
    found = quantkv.compare([memory_row("fp16", 512), *ours], [*theirs, memory_row("fp16", 512)])
    assert [(pair.a["requested"]["format"], pair.differences) for pair in found.near] == [
        ("int4-head", ["fill prefill → synthetic"]),
        ("int8-head", ["fill prefill → synthetic"]),
    ]
    lines = [line for line in map(str, comparison_lines(found)) if "speed" in line]
    assert lines == [
        "not compared: asked for otherwise, fill prefill → synthetic (speed int4-head at 512 and 1 more)",
        "only in A: speed kivi-2",
    ]
    assert [pair["differences"] for pair in found.to_dict()["near"]] == [["fill prefill → synthetic"]] * 2


def test_the_nearest_row_says_why_and_each_row_says_it_once() -> None:
    far = filled("synthetic", batch=4)
    (pair,) = quantkv.compare(
        [memory_row("fp16", 512), filled("prefill")], [memory_row("fp16", 512), far]
    ).near
    assert pair.differences == ["batch 1 → 4", "fill prefill → synthetic"]
    both = [memory_row("fp16", 512), far, filled("synthetic")]
    found = quantkv.compare([memory_row("fp16", 512), filled("prefill")], both)
    assert found.near[0].b is both[2] and len(found.near) == 1


def test_rows_of_another_context_or_sample_are_no_near_match() -> None:
    ours = [memory_row("fp16", 512), filled("prefill"), quality(GAPS_A)]
    theirs = [memory_row("fp16", 512), speed_row("int4-head", 2048, protocol={"fill": "synthetic"})]
    assert quantkv.compare(ours, theirs).near == []


def test_where_nothing_can_be_compared_the_settings_that_differ_are_named() -> None:
    with pytest.raises(QuantKVError, match=r"model, context and protocol: fill prefill → synthetic$"):
        quantkv.compare([filled("prefill")], [filled("synthetic")])


def answers(right: list[bool], log_probs: list[float]) -> Row:
    told = [{"depth": 0.5, "right": r, "log_prob": p} for r, p in zip(right, log_probs, strict=True)]
    row = quality_row("int4-head", 512)
    section = {"exact_match": sum(right) / len(right), "log_prob": sum(log_probs) / len(log_probs)}
    low, high = wilson(sum(right), len(right))
    section |= {"exact_match_low": low, "exact_match_high": high, "answers": told}
    return row | {"kind": "retrieval", "quality": None, "retrieval": section}


def test_answers_to_the_same_questions_are_paired() -> None:
    """Six questions that only a got right and none that only b did: p = 2 / 2**6 = 0.031."""
    a = answers([True] * 10, [-0.1] * 10)
    b = answers([True] * 4 + [False] * 6, [-0.1] * 4 + [-2.0] * 6)
    found = quantkv.compare([a], [b])
    share = change_of(found, "exact_match")
    assert share.verdict == "worse" and "p = 0.031" in share.how
    assert change_of(found, "log_prob").verdict == "worse"
    b["requested"]["context"] = 512
    b["retrieval"]["answers"][0]["depth"] = 0.1
    assert "unpaired" in change_of(quantkv.compare([a], [b]), "exact_match").how


def texts(kls: list[float]) -> Row:
    told = [{"n": 64, "sum_kl": 64 * kl} for kl in kls]
    section = {"kl_mean": sum(kls) / len(kls), "first_divergence_median": 9.0, "equal_tokens": 0.5}
    return quality_row("int4-head", 512) | {
        "kind": "generation",
        "quality": None,
        "generation": section | {"texts": told},
    }


def test_texts_of_the_same_prompts_are_paired() -> None:
    kls = [0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.1, 0.3]
    change = change_of(quantkv.compare([texts(kls)], [texts([kl + 0.05 for kl in kls])]), "kl_mean")
    assert change.change == pytest.approx(0.05) and change.verdict == "worse"
    assert change.how == "paired over 8 prompts"


def test_two_formats_of_one_set() -> None:
    rows = [memory_row("int4-head", 512), memory_row("int8-head", 512, values={"held_bytes": 9_000_000})]
    found = quantkv.compare(rows, formats=["int4-head", "int8-head"])
    change = change_of(found, "held_bytes")
    assert (change.a, change.b, change.verdict) == (4_194_304, 9_000_000, "worse")
    frame = found.to_frame()
    assert list(frame[["format_a", "format_b"]].iloc[0]) == ["int4-head", "int8-head"]
    assert found.pairs[0].differences == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formats": ["int4-head"]}, "two of them are compared, got 1"),
        ({"formats": ["int4-head", "int4-haed"]}, "did you mean 'int4-head'"),
        ({}, "two results folders, two row files, or one folder and two formats"),
        ({"b": [memory_row("int4-head", 4096)]}, "has context 512, b has 4096"),
    ],
)
def test_wrong_questions_are_refused(arguments: Row, message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        quantkv.compare([memory_row("int4-head", 512)], **arguments)


def command(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": "80", "NO_COLOR": "1"})


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "before", tmp_path / "after"
    for folder, gaps in zip(found, (GAPS_A, GAPS_B)):
        folder.mkdir()
        write_row(quality(gaps) | {"key": "1" * 64}, folder)
    write_row(memory_row("kivi-2", 512) | {"key": "2" * 64}, found[0])
    return found


def test_the_command_says_what_changed(folders: tuple[Path, Path]) -> None:
    result = command(*folders)
    assert result.exit_code == 12, result.output
    (line,) = [line for line in result.output.splitlines() if "delta_nll" in line]
    assert "int4-head" in line and "worse" in line and "paired over 8 windows" in line
    assert "only in A: memory kivi-2" in result.output
    assert "1 pair of rows: 1 worse, 2 same; of 1 intervals" in result.output
    assert command(folders[0], folders[0]).exit_code == 0


def test_the_command_in_json_says_the_same(folders: tuple[Path, Path]) -> None:
    result = command(*folders, "--json")
    assert result.exit_code == 12
    told = json.loads(result.stdout)
    assert told["exit_code"] == 12 and told["verdicts"] == {"worse": 1, "same": 2}
    (pair,) = told["pairs"]
    assert pair["format_a"] == "int4-head" and pair["changes"][0]["metric"] == "delta_nll"
    assert told["only_a"][0]["format"] == "kivi-2"


def test_two_files_are_compared_whatever_they_hold(folders: tuple[Path, Path], tmp_path: Path) -> None:
    longer = write_row(quality_row("kivi-2", 2048) | {"key": "3" * 64}, tmp_path)
    (short,) = folders[0].glob("quality-*.json")
    result = command(short, longer)
    assert "differs: context 512 → 2048" in result.output and "int4-head → kivi-2" in result.output
    (memory,) = folders[0].glob("memory-*.json")
    wrong = command(short, memory)
    assert wrong.exit_code == 2 and "a quality row and a memory row" in wrong.stderr


def test_one_folder_alone_is_refused(folders: tuple[Path, Path]) -> None:
    result = command(folders[0])
    assert result.exit_code == 2 and "one folder and two formats" in result.stderr
    assert "did you mean" in command(folders[0], "-f", "int4-head", "-f", "kivi2").stderr
