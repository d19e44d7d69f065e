"""Rows of three kinds become one record per format and context, and what may not be compared stays apart."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rows import Row, failed_row, memory_row, quality_row, speed_row, sweep_rows

from quantkv.studies.study import Study, studies, summary_frame


def record(study: Study, label: str, context: int) -> dict[str, Any]:
    found = [r for r in study.records() if (r["label"], r["context"]) == (label, context)]
    assert len(found) == 1
    return found[0]


def with_provenance(row: Row, **changes: Any) -> Row:
    changed = copy.deepcopy(row)
    changed["provenance"] |= changes
    return changed


def test_three_kinds_of_a_cell_meet_in_one_record() -> None:
    rows = [
        quality_row("int4-head", 512, values={"kl_mean": 0.0058}),
        speed_row("int4-head", 512, values={"decode_ms_median": 57.0}),
        memory_row("int4-head", 512, values={"held_bytes": 6_644_160}),
    ]
    (study,) = studies(rows)
    merged = record(study, "int4-head", 512)
    assert (merged["kl_mean"], merged["decode_ms_median"], merged["held_bytes"]) == (0.0058, 57.0, 6_644_160)
    assert merged["weights"] == "4-bit gguf (Q4_1)"
    assert merged["speed_engine"] == "reference"


def test_a_sweep_is_one_study_with_the_baseline_first_and_bits_falling() -> None:
    (study,) = studies(sweep_rows())
    labels = [r["label"] for r in study.records() if r["context"] == 2048]
    assert labels == [
        "DynamicCache",
        "fp16",
        "fp8-e4m3",
        "int8-channel",
        "int8-head",
        "int4-head",
        "kivi-4",
        "kivi-2",
    ]


def test_what_was_not_measured_is_missing_not_zero() -> None:
    (study,) = studies([memory_row("int4-head", 512)])
    merged = record(study, "int4-head", 512)
    assert merged["kl_mean"] != merged["kl_mean"]
    assert merged["decode_ms_median"] != merged["decode_ms_median"]


@pytest.mark.parametrize(
    ("kl", "verdict"), [(0.0199, ""), (0.02, "caution"), (0.0999, "caution"), (0.1, "unfit")]
)
def test_kl_decides_the_verdict(kl: float, verdict: str) -> None:
    (study,) = studies([quality_row("int4-head", 512, values={"kl_mean": kl})])
    assert record(study, "int4-head", 512)["verdict"] == verdict


def test_a_quality_flag_marks_the_row_and_a_speed_flag_does_not() -> None:
    rows = [
        quality_row("int4-head", 512, values={"flags": ["packed_read_fraction 0.31 is below 0.5"]}),
        speed_row("int8-head", 512, values={"flags": ["only 3 rounds"]}),
    ]
    (study,) = studies(rows)
    assert record(study, "int4-head", 512)["verdict"] == "flagged"
    assert record(study, "int4-head", 512)["flags"] == "quality: packed_read_fraction 0.31 is below 0.5"
    assert record(study, "int8-head", 512)["verdict"] == ""
    assert record(study, "int8-head", 512)["flags"] == "speed: only 3 rounds"


def test_a_measured_row_wins_over_a_failed_one_and_a_newer_over_an_older() -> None:
    old = with_provenance(
        speed_row("fp16", 512, values={"decode_ms_median": 1.0}), started="2031-01-01T00:00:00"
    )
    new = with_provenance(
        speed_row("fp16", 512, values={"decode_ms_median": 2.0}), started="2031-01-02T00:00:00"
    )
    failed = with_provenance(failed_row("speed", "fp16", 512, "killed"), started="2031-01-03T00:00:00")
    for rows in ([old, new, failed], [failed, new, old]):
        (study,) = studies(rows)
        assert record(study, "fp16", 512)["decode_ms_median"] == 2.0
        assert record(study, "fp16", 512)["speed_status"] == "ok"


def test_a_failed_cell_keeps_its_status_and_reason() -> None:
    (study,) = studies(
        [*sweep_rows(formats=("fp16",)), failed_row("memory", "int4-head", 512, "out of memory")]
    )
    merged = record(study, "int4-head", 512)
    assert (merged["memory_status"], merged["memory_reason"]) == ("failed", "out of memory")


def test_rows_of_an_older_metric_version_are_left_out_with_a_note() -> None:
    stale = with_provenance(quality_row("kivi-2", 512), metrics={"quality": 0, "speed": 1, "memory": 1})
    (study,) = studies([quality_row("int4-head", 512), stale])
    assert [r["label"] for r in study.records()] == ["int4-head"]
    assert study.notes == ("1 quality rows of older metric versions are left out",)


def test_models_batches_and_dtypes_are_studies_of_their_own() -> None:
    rows = [
        *sweep_rows(),
        *sweep_rows(model="org/Other_7B"),
        *sweep_rows(batch=4),
        *sweep_rows(dtype="bfloat16"),
    ]
    found = studies(rows)
    assert len(found) == 4
    assert len({study.slug for study in found}) == 4
    assert all(len(study.frame) == 3 * 8 for study in found)


def test_two_prefill_protocols_are_two_studies_that_share_speed_and_memory() -> None:
    rows = sweep_rows(contexts=(512,), formats=("int4-head",))
    other = quality_row("int4-head", 512, values={"kl_mean": 0.0343}, protocol={"prefill": "final"})
    found = studies([*rows, other])
    assert sorted(round(record(study, "int4-head", 512)["kl_mean"], 4) for study in found) == [0.0058, 0.0343]
    assert all(record(study, "int4-head", 512)["decode_ms_median"] == 57.0 for study in found)
    assert all(record(study, "DynamicCache", 512)["decode_ms_median"] == 30.0 for study in found)


def test_speed_of_two_machines_is_never_mixed_but_memory_is_shared() -> None:
    rows = sweep_rows(contexts=(512,), formats=("int4-head",))
    machine = {"cpu": "another", "cores": 8, "ram_gb": 64.0, "gpu": None}
    elsewhere = [
        with_provenance(row, machine=machine)
        for row in (speed_row("int4-head", 512, values={"decode_ms_median": 9.0}), speed_row("dynamic", 512))
    ]
    found = studies([*rows, *elsewhere])
    assert sorted(record(study, "int4-head", 512)["decode_ms_median"] for study in found) == [9.0, 57.0]
    assert all(record(study, "int4-head", 512)["held_bytes"] > 0 for study in found)


def test_a_format_under_two_policies_is_named_by_its_specs() -> None:
    rows = [quality_row("int4-head", 512), quality_row("int4-head", 512, spec="int4-head+r0+s0")]
    (study,) = studies([*rows, quality_row("kivi-2", 512, spec="k.int2-channel@g32+v.int2-token@g32")])
    assert {r["label"] for r in study.records()} == {"int4-head", "int4-head+r0+s0", "kivi-2"}


def test_a_simulated_format_says_so() -> None:
    (study,) = studies([quality_row("mine", 512, simulated=True)])
    assert [r["label"] for r in study.records()] == ["mine (simulated)"]


def test_frame_of_all_studies_holds_every_record() -> None:
    rows = [*sweep_rows(), *sweep_rows(model="other")]
    assert len(summary_frame(rows)) == 2 * 3 * 8
    assert summary_frame([]).empty
