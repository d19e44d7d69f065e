"""Retrieval and generation in a sweep: cells, keys, resuming, and the report made from their rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from fake_measure import sweep
from rich.console import Console

from quantkv.errors import QuantKVError
from quantkv.report.terminal import terminal_table
from quantkv.report.write import write_report
from quantkv.rows.files import read_rows
from quantkv.rows.frames import load_results
from quantkv.sweep.grid import blocks, expand
from quantkv.sweep.local import LocalMeasure
from quantkv.sweep.run import run_sweep

Raw = dict[str, Any]
RETRIEVAL: Raw = {"tasks": ["needle"], "samples": 1, "depths": [0.1, 0.9], "tail": 48}
GENERATION: Raw = {"tokens": 6, "prompts": 1, "mode": ["greedy", "sample"]}


def small(out: Any, **changes: Any) -> Any:
    """Both kinds on a tiny model whose tokens are bytes."""
    raw: Raw = {"quality": None, "speed": None, "memory": None, "contexts": [200]}
    raw |= {"policy": {"recent": 16, "flush": 16}, "retrieval": RETRIEVAL, "generation": GENERATION}
    return sweep(out, **raw | changes)


def cells(**changes: Any) -> list[Any]:
    return expand(small("unused", **changes))


def quiet() -> Console:
    return Console(quiet=True)


def test_a_cell_per_task_or_mode_context_seed_and_format() -> None:
    two = RETRIEVAL | {"tasks": ["needle", "passkey"]}
    found = cells(retrieval=two, contexts=[200, 300], seeds=[0, 1])
    assert sum(cell.kind == "retrieval" for cell in found) == 2 * 2 * 2 * 2
    assert sum(cell.kind == "generation" for cell in found) == 2 * 2 * 2 * 2
    assert {len(block.cells) for block in blocks(found)} == {2}
    assert {cell.part for block in blocks(found) for cell in block.cells} == {
        "needle", "passkey", "greedy", "sample",
    }  # fmt: skip


def test_only_packed_formats_are_asked() -> None:
    found = cells(formats=["int8-head", "dynamic", "peer:quanto-int4"])
    assert {cell.label for cell in found} == {"int8-head"}


def test_memory_comes_last_because_it_drops_the_model() -> None:
    kinds = [cell.kind for cell in cells(memory={}, quality={}, speed={})]
    assert list(dict.fromkeys(kinds)) == ["quality", "retrieval", "generation", "speed", "memory"]


def test_a_key_holds_what_changes_the_number_and_nothing_else() -> None:
    def keys(kind: str, **changes: Any) -> list[str]:
        return [cell.key({}) for cell in cells(**changes) if cell.kind == kind]

    base = keys("retrieval")
    assert len(set(base)) == len(base)
    for change in ({"tail": 60}, {"samples": 2}, {"depths": [0.5]}):
        assert not set(keys("retrieval", retrieval=RETRIEVAL | change)) & set(base)
    greedy, sampled = keys("generation")[:2], keys("generation")[2:]
    warmer = keys("generation", generation=GENERATION | {"temperature": 2.0})
    assert set(greedy) < set(warmer) and not set(sampled) & set(warmer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retrieval": {"tasks": ["nedle"]}}, "'nedle' is not one of passkey.*did you mean 'needle'"),
        ({"retrieval": {"depths": [1.2]}}, r"retrieval\.depths"),
        ({"retrieval": {}, "contexts": [100]}, "a context of 100 tokens has no room for facts"),
        ({"formats": ["dynamic"]}, "retrieval runs packed formats only"),
        ({"generation": {"tokens": 1}}, r"generation\.tokens"),
        ({"generation": {"mode": "beam"}}, r"generation\.mode.*greedy"),
        ({"generation": {"top_p": 0}}, r"generation\.top_p"),
        ({"retrieval": None, "generation": None}, "nothing to measure: give quality, retrieval, generation"),
    ],
)
def test_wrong_settings_are_named(changes: Raw, words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        small("unused", **changes)


def test_a_generation_longer_than_the_model_reads_is_refused(tmp_path: Path) -> None:
    long = small(tmp_path, models=["random-llama:max_position_embeddings=256"], generation={"tokens": 80})
    with pytest.raises(QuantKVError, match=r"make 280, but .* reads at most 256"):
        run_sweep(long, measure=LocalMeasure(), console=quiet())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep."""
    out = tmp_path_factory.mktemp("results")
    summary = run_sweep(small(out), console=quiet())
    assert summary.counts == {"ok": 6, "failed": 0, "skipped": 0}
    return out


def test_a_sweep_at_chance_says_so_in_rows_frame_and_report(results: Path, tmp_path: Path) -> None:
    frame = load_results(results)
    asked = frame[frame["kind"] == "retrieval"]
    assert not asked["conclusive"].any() and asked["verdict"].isna().all()
    assert asked["inconclusive_because"].str.contains("no better than chance").all()
    assert (asked["exact_match_ref"] == 0).all() and (asked["packed_read_fraction"] > 0.5).all()
    console = Console(width=120, file=io.StringIO())
    terminal_table(read_rows(results), console)
    assert "inconclusive: needle at 200: the exact cache answers 0 of 2" in console.file.getvalue()
    written = {path.name for path in write_report(results, tmp_path, html=False)}
    stems = {"retrieval": ("md", "tex", "csv", "png", "pdf"), "generation": ("md", "tex", "csv")}
    expected = {f"{stem}.{ending}" for stem, endings in stems.items() for ending in endings}
    assert written == expected | {"figures.tex"}
    assert (
        "| needle | 200 | int4-head | 0 [0, 66] | 0 [0, 66] | — |" in (tmp_path / "retrieval.md").read_text()
    )


def test_rows_say_what_was_generated(results: Path) -> None:
    rows = [row for row in read_rows(results) if row["kind"] == "generation"]
    assert {row["protocol"]["mode"] for row in rows} == {"greedy", "sample"}
    for row in rows:
        assert row["generation"]["tokens"] == 6 and len(row["protocol"]["text_sha256"]) == 64
        assert row["effective"]["layers_quantized"] == 2 and row["effective"]["recent_key"] == 16
    assert len(list(results.glob("generation-*.npz"))) == 4


def test_a_finished_sweep_measures_nothing_and_a_new_format_only_itself(results: Path) -> None:
    again = run_sweep(small(results), console=quiet())
    assert again.finished_before == again.total == 6 and not any(again.counts.values())
    more = run_sweep(
        small(results, formats=["int8-head", "kivi-2"], generation=None, contexts=[260]), console=quiet()
    )
    assert (more.finished_before, more.counts["ok"]) == (0, 1) and more.counts["failed"] == 1
    (failed,) = [row for row in read_rows(results) if row["status"] == "failed"]
    assert failed["requested"]["format"] == "kivi-2" and "would be read exactly" in failed["reason"]


def _retrieval_row(format: str, hits: int, verdict: str | None, depths: list[Raw]) -> Raw:
    section: Raw = {"task": "needle", "n": 4, "hits": hits, "chance": 0.1, "p_value": 0.5, "depths": depths}
    for which, value in (("", hits / 4), ("_ref", 1.0)):
        section |= {f"exact_match{which}{end}": value for end in ("", "_low", "_high")}
    section |= {"delta_log_prob": -0.5, "delta_log_prob_low": None, "delta_log_prob_high": None}
    section |= {"packed_read_fraction": 0.8, "conclusive": verdict is not None, "verdict": verdict}
    section |= {"inconclusive_because": None if verdict else "chance"}
    requested = {
        "model": "m",
        "format": format,
        "spec": format,
        "context": 512,
        "seed": 0,
        "dtype": "float32",
    }
    protocol = {"task": "needle", "samples": 2, "depths": [0.1, 0.9], "tail": 160, "text": "t"}
    row = {"schema": 1, "kind": "retrieval", "key": format, "status": "ok", "reason": None}
    return row | {"requested": requested, "protocol": protocol, "retrieval": section}


def test_the_heat_map_shows_the_share_of_right_answers_at_each_depth() -> None:
    from quantkv.measurements.retrieval.needle_figure import needle_figure
    from quantkv.studies.groups import groups

    depths = [{"depth": d, "n": 2, "hits": h, "hits_ref": 2} for d, h in ((0.1, 0), (0.9, 1))]
    rows = [_retrieval_row("int4-head", 1, "worse", depths), _retrieval_row("kivi-2", 1, None, depths)]
    (group,) = groups(rows, "retrieval")
    (ax,) = [ax for ax in needle_figure(group).axes if ax.images]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["exact cache", "int4-head", "kivi-2"]
    assert ax.images[0].get_array().tolist() == [[1.0, 1.0], [0.0, 0.5], [0.0, 0.5]]
    assert sorted(round(patch.get_y() + 0.5) for patch in ax.patches) == [0, 0, 2, 2]


def test_rows_of_other_protocols_or_models_stand_apart() -> None:
    from quantkv.studies.groups import groups

    rows = [_retrieval_row("a", 1, "worse", []) for _ in range(4)]
    rows[1]["protocol"] = rows[1]["protocol"] | {"tail": 200}
    rows[2]["requested"] = rows[2]["requested"] | {"model": "other"}
    rows[3]["protocol"] = rows[3]["protocol"] | {"task": "passkey"}
    assert sorted(len(group.rows) for group in groups(rows, "retrieval")) == [1, 1, 2]
