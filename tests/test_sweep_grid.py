"""Cells, keys and blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fake_measure import sweep

from quantkv.rows.axes import formats
from quantkv.rows.cell import Cell
from quantkv.sweep.grid import blocks, expand


def cells(**changes: Any) -> list[Cell]:
    return expand(sweep("unused", **changes))


def test_each_kind_has_its_cells() -> None:
    count = Counter(cell.kind for cell in cells(contexts=[64, 128], batch_sizes=[1, 4], seeds=[0, 1]))
    assert count == {"quality": 2 * 2 * 2, "speed": 3 * 2 * 2, "memory": 3 * 2 * 2}


def test_speed_and_memory_may_be_limited_to_some_formats() -> None:
    found = cells(contexts=[64], speed={"formats": ["int4-head"]}, memory={"formats": "int8-head"})
    arms = {
        kind: [cell.label for cell in found if cell.kind == kind] for kind in ("quality", "speed", "memory")
    }
    assert arms["quality"] == ["int8-head", "int4-head"]
    assert (arms["speed"], arms["memory"]) == (["dynamic", "int4-head"], ["dynamic", "int8-head"])
    whole = {cell.label: cell.key({}) for cell in cells(contexts=[64]) if cell.kind == "speed"}
    assert {cell.key({}) for cell in found if cell.kind == "speed"} < set(whole.values())


def test_prefill_is_an_axis_of_quality_only() -> None:
    found = cells(quality={"protocol": {"prefill": ["exact", "chunk:32"]}})
    assert {cell.prefill for cell in found if cell.kind == "quality"} == {"exact", "chunk:32"}
    assert {cell.prefill for cell in found if cell.kind != "quality"} == {"exact"}


def test_a_policy_axis_makes_variants_only_where_it_changes_something() -> None:
    names = [
        label for label, _ in formats(sweep("x", formats=["int4-head", "fp16"], policy={"recent": [64, 0]}))
    ]
    assert names == ["int4-head", "int4-head+r0", "fp16"]
    named = {"name": "mine", "spec": "int4-head"}
    labels = [label for label, _ in formats(sweep("x", formats=[named], policy={"sinks": [4, 0]}))]
    assert labels == ["mine+s4+r64+f32", "mine+s0+r64+f32"]


def test_two_names_of_one_spec_are_one_cell() -> None:
    found = [label for label, _ in formats(sweep("x", formats=["int8-head", "k.int8-head+v.int8-head"]))]
    assert found == ["int8-head"]


def test_blocks_share_what_they_are_measured_with() -> None:
    grouped = blocks(cells(contexts=[64, 128], seeds=[0, 1]))
    count = Counter((block.kind, len(block.cells)) for block in grouped)
    assert count == {("quality", 2): 4, ("speed", 3): 2, ("memory", 3): 2}
    for block in grouped:
        assert {(cell.context, cell.kind) for cell in block.cells} == {(block.head.context, block.kind)}


def base() -> Cell:
    return next(cell for cell in cells() if cell.kind == "quality")


@pytest.mark.parametrize(
    "changes",
    [
        {"contexts": [32]},
        {"formats": ["int4-head"]},
        {"models": [{"id": "random-llama", "dtype": "bfloat16"}]},
        {"models": [{"id": "random-llama", "attn": "sdpa"}]},
        {"policy": {"recent": 0}},
        {"quality": {"protocol": {"score": 64}}},
        {"quality": {"protocol": {"windows": 4}}},
        {"quality": {"protocol": {"prefill": "final"}}},
    ],
)
def test_whatever_determines_the_number_changes_the_key(changes: dict[str, Any]) -> None:
    other = next(cell for cell in cells(**changes) if cell.kind == "quality")
    assert other.key({"fingerprint": "f"}) != base().key({"fingerprint": "f"})


def test_a_cell_of_another_batch_has_another_key() -> None:
    speed = [cell for cell in cells(contexts=[64], batch_sizes=[1, 4]) if cell.kind == "speed"]
    assert len({cell.key({}) for cell in speed}) == len(speed) == 3 * 2


def test_facts_change_the_key_and_names_do_not() -> None:
    cell = base()
    named = cells(formats=[{"name": "mine", "spec": "int8-head"}], quality={"text": "a-file"})[0]
    assert cell.key({"fingerprint": "f"}) != cell.key({"fingerprint": "g"})
    assert cell.key({"threads": 1}) != cell.key({"threads": 2}), "as they stand in the facts of speed"
    assert named.label == "mine" and named.key({"fingerprint": "f"}) == cell.key({"fingerprint": "f"})


def test_keys_are_the_same_in_every_process() -> None:
    """A key that moved between versions would throw away every result on disk."""
    assert base().key({"fingerprint": "f"}) == base().key({"fingerprint": "f"})
    assert len(base().key({})) == 64


def test_the_baseline_is_asked_for_as_it_runs() -> None:
    dynamic = next(cell for cell in cells() if cell.spec is None)
    assert (dynamic.label, dynamic.spec_string, dynamic.requested()["attn"]) == ("dynamic", "dynamic", "sdpa")
