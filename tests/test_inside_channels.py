"""Figures of what is inside: the right numbers in the right places."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from drawn import extents, legend_labels
from rich.console import Console

from quantkv.drawing.figure import rendered
from quantkv.measurements.inside.channels import shown_layers
from quantkv.measurements.inside.figures import channel_figure, damage_figure, error_figure
from quantkv.measurements.inside.files import write_inspection
from quantkv.measurements.inside.inspection import Inspection
from quantkv.measurements.inside.tables import error_table, outlier_table

LAYERS, HEADS, WIDTH = 5, 2, 3


def inspection() -> Inspection:
    """Layer 2 has the hottest key channel, layer 3 the hottest value channel; b leaves layer 0 exact."""
    statistics = [
        (i, t, h, 40.0 if (i, t) in ((2, "key"), (3, "value")) else 2.0, 1, 0.5, 9.0, 0.25)
        for i in range(LAYERS)
        for t in ("key", "value")
        for h in range(HEADS)
    ]
    names = ["layer", "tensor", "head", "outlier_ratio", "hot_channel", "hot_offset", "absmax", "kurtosis"]
    errors = [
        (f, i, h, *[base * (1 + i + 10 * h)] * 4, 1.0)
        for f, base in (("int8-head", 0.001), ("b", 0.1))
        for i in range(f == "b", LAYERS)
        for h in range(HEADS)
    ]
    columns = [
        "format",
        "layer",
        "head",
        "key_error",
        "value_error",
        "logit_error",
        "output_error",
        "output_rms",
    ]
    maps = {(i, t): np.full((4, HEADS * WIDTH), float(i)) for i in range(LAYERS) for t in ("key", "value")}
    return Inspection(
        6,
        2,
        pd.DataFrame(errors, columns=columns),
        pd.DataFrame(statistics, columns=names),
        pd.DataFrame(),
        maps,
    )


def images(figure):
    return [image for ax in figure.axes for image in ax.get_images()]


def test_the_telling_layers_are_the_outermost_and_the_hottest():
    assert shown_layers(inspection().statistics) == [0, 2, 3, 4]


def test_magnitudes_stand_token_by_channel_with_a_row_per_layer():
    figure = channel_figure(inspection(), [0, 3])
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == [
        f"layer {i}, {name}" for i in (0, 3) for name in ("keys", "values")
    ]
    assert [image.get_array().max() for image in images(figure)] == [0, 0, 3, 3]
    assert images(figure)[0].get_extent() == [0, HEADS * WIDTH, 8, 0]
    assert list(figure.axes[0].get_xticks()) == [0, 3, 6]


def test_errors_stand_head_by_layer_and_share_one_scale():
    drawn = images(error_figure(inspection().errors))
    assert len(drawn) == 2 * 3 and len({id(image.norm) for image in drawn}) == 1
    grid = drawn[0].get_array()
    assert grid.shape == (HEADS, LAYERS) and grid[1, 4] == pytest.approx(0.001 * 15)
    assert np.isnan(np.ma.filled(drawn[3].get_array(), np.nan)[:, 0]).all()
    assert (drawn[0].norm.vmin, drawn[0].norm.vmax) == pytest.approx((0.001, 1.5))


def test_damage_has_a_point_for_each_measured_format():
    table = pd.DataFrame(
        {"predicted": [1.0, 0.1, 5.0], "kl_mean": [0.2, 0.01, np.nan]}, index=["a", "b", "c"]
    )
    points = damage_figure(table).axes[0].get_lines()
    assert {line.get_label(): (*line.get_xdata(), *line.get_ydata()) for line in points} == {
        "a": (1.0, 0.2),
        "b": (0.1, 0.01),
    }


def test_equal_figures_are_equal_files():
    one, other = (rendered(error_figure(inspection().errors), "pdf") for _ in range(2))
    assert one == other


def test_files_hold_null_where_nothing_was_measured(tmp_path):
    damage = pd.DataFrame({"predicted": [1.5], "kl_mean": [np.nan]}, index=pd.Index(["b"], name="format"))
    written = write_inspection(inspection(), damage, {"context": 6}, tmp_path / "out", [0])
    assert '"kl_mean": null' in (tmp_path / "out" / "inspection.json").read_text()
    assert all(path.stat().st_size for path in written)
    assert "damage.png" not in {path.name for path in written}


@pytest.mark.parametrize(("measured", "drawn"), [([0.2, np.nan], False), ([0.2, 0.1], True)])
def test_damage_is_drawn_from_two_measured_formats_on(tmp_path, measured, drawn):
    index = pd.Index(["b", "int8-head"], name="format")
    damage = pd.DataFrame({"predicted": [1.5, 0.1], "kl_mean": measured}, index=index)
    written = write_inspection(inspection(), damage, {"context": 6}, tmp_path / "out", [0])
    assert ("damage.png" in {path.name for path in written}) == drawn


def test_tables_say_which_layer_is_worst_and_which_channel_is_hottest():
    damage = pd.DataFrame({"predicted": [1.5, 0.1], "kl_mean": [np.nan, 0.02]}, index=["b", "int8-head"])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(error_table(inspection().errors, damage), outlier_table(inspection().statistics, count=2))
    lines = console.export_text().splitlines()
    (row,) = [line.split() for line in lines if line.startswith("b ")]
    assert row[-4:] == ["1", "(4)", "1.5", "-"]  # layer 4: mean of .5 and 1.5
    hottest = [line.split()[:3] for line in lines if " 40 " in line]
    assert hottest == [["2", "key", "40"], ["3", "value", "40"]]


def test_the_legend_of_damage_shows_long_names_whole() -> None:
    long = "k.int8-channel@g32+v.int4-head+r128+s4+l0-1.fp16+l-2--1.int8-head"
    names = [long, "int4-head", "int8-token@g64"]
    table = pd.DataFrame({"predicted": [1e-3, 1e-2, 0.1], "kl_mean": [1e-3, 1e-2, 0.1]}, index=names)
    figure = damage_figure(table)
    assert sorted(label.replace("\n", "") for label in legend_labels(figure)) == sorted(names)
    boxes = extents(figure, list(figure.legends))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
