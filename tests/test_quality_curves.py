"""Curves of quality: against context on the same targets, along the scored span, and their figure."""

from pathlib import Path
from typing import Any

import pytest
from rows import quality_row, sweep_rows

import quantkv
from quantkv.errors import QuantKVError
from quantkv.report.plots import can_draw, draw
from quantkv.rows.files import write_row
from quantkv.rows.frames import Evaluation
from quantkv.studies.study import studies

SHIPPED = Path(__file__).parents[1] / "experiments" / "smollm2" / "rows"


def positions(*kl: float) -> list[dict[str, Any]]:
    """Runs of eight offsets with these mean KLs."""
    return [
        {"start": 8 * i, "stop": 8 * i + 8, "n": 64, "kl_mean": value, "delta_nll": value / 2}
        for i, value in enumerate(kl)
    ]


def made(format: str, context: int, kl: float, *, starts: tuple[int, ...] = (10, 50), **options: Any) -> Any:
    windows = [{"start": start, "n": 16} for start in starts]
    values = {"kl_mean": kl, "top5_agreement": 0.9, "windows": windows, "positions": positions(kl, 2 * kl)}
    return quality_row(format, context, values=values, **options)


ROWS = [made("kivi-2", 2048, 0.2), made("kivi-2", 512, 0.1), made("int4-head", 512, 0.01)]


def test_by_context_each_format_is_a_line_from_short_to_long():
    frame = quantkv.curves(ROWS)
    assert frame[["format", "context", "kl_mean", "top5_agreement"]].values.tolist() == [
        ["int4-head", 512, 0.01, 0.9], ["kivi-2", 512, 0.1, 0.9], ["kivi-2", 2048, 0.2, 0.9]
    ]  # fmt: skip


def test_contexts_that_scored_other_targets_are_no_curve():
    other = made("kivi-2", 1024, 0.3, starts=(10, 51))
    with pytest.raises(QuantKVError, match="kivi-2: contexts 2048 and 1024 scored different targets"):
        quantkv.curves([*ROWS, other])
    another_text = made("kivi-2", 1024, 0.3, protocol={"text_sha256": "0" * 64})
    with pytest.raises(QuantKVError, match="different targets"):
        quantkv.curves([*ROWS, another_text])
    assert len(quantkv.curves([*ROWS, made("kivi-2", 1024, 0.3, starts=(10, 51), seed=1)])) == 4


def test_by_position_each_run_of_offsets_is_a_line():
    frame = quantkv.curves(ROWS, by="position").query("format == 'kivi-2' and context == 512")
    assert frame[["start", "stop", "n", "kl_mean", "delta_nll"]].values.tolist() == [
        [0, 8, 64, 0.1, 0.05], [8, 16, 64, 0.2, 0.1]
    ]  # fmt: skip


def test_a_folder_an_evaluation_and_rows_give_the_same(tmp_path):
    for i, row in enumerate(ROWS):
        write_row(row | {"key": f"{i}" * 64}, tmp_path)
    for by in ("context", "position"):
        expected = quantkv.curves(ROWS, by=by)
        assert quantkv.curves(Evaluation(ROWS), by=by).equals(expected)
        columns = ["format", "context", *(["start"] if by == "position" else [])]
        found = quantkv.curves(tmp_path, by=by).sort_values(columns, ignore_index=True)
        assert found.equals(expected.sort_values(columns, ignore_index=True))


def test_other_kinds_and_failed_cells_have_no_curve_and_a_wrong_name_is_refused():
    assert set(quantkv.curves(sweep_rows((512,))).columns) >= {"kl_mean", "delta_nll"}
    failed = quality_row("kivi-4", 512) | {"status": "failed", "quality": None}
    assert len(quantkv.curves([*ROWS, failed])) == 3
    with pytest.raises(QuantKVError, match="curves by 'depth'; legal: context, position"):
        quantkv.curves(ROWS, by="depth")


def test_rows_of_before_have_a_curve_by_context_and_none_by_position():
    before = [quality_row("kivi-2", 512), quality_row("kivi-2", 2048)]
    assert quantkv.curves(before)["top5_agreement"].isna().all()
    assert len(quantkv.curves(before, by="position")) == 0
    assert quantkv.curves(SHIPPED)["kl_mean"].notna().all()


def test_the_figure_shows_the_largest_context_and_the_mean_over_seeds():
    rows = [*ROWS, made("kivi-2", 2048, 0.4, seed=1), made("fp32", 2048, 0.0)]
    (study,) = studies(rows)
    (ax,) = draw(study, "kl_by_position").axes
    drawn = {line.get_gid(): list(zip(*line.get_data())) for line in ax.get_lines()}
    (points,) = [points for gid, points in drawn.items() if gid == "format:kivi-2"]
    assert [(x, pytest.approx(y)) for x, y in points] == [(4, 0.3), (12, 0.6)]
    assert "format:int4-head" not in drawn and ax.get_yscale() == "log"
    assert drawn["format:fp32"] == []
    assert "2048" in ax.get_xlabel()


def test_a_study_without_positions_has_no_such_figure():
    (study,) = studies([quality_row("kivi-2", 512)])
    assert can_draw(study, "kl") and not can_draw(study, "kl_by_position")
    with pytest.raises(QuantKVError, match="no row has values along the scored span"):
        draw(study, "kl_by_position")
