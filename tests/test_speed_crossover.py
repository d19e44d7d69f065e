"""Where a format overtakes the baseline: known answers, and nothing beyond what was measured."""

from __future__ import annotations

import itertools
import math

import pytest
from drawn import data, extents, legend_labels, lines_of, only, overlap
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from rows import speed_row

from quantkv.measurements.speed.crossover_figure import turning_point
from quantkv.report.plots import can_draw, draw


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((-1.0, 3.0, 9.0), 1250.0),
        ((-2.0, -2.0, 2.0), 3000.0),
        ((1.0, 2.0, 3.0), 0.0),
        ((5.0, 4.0, -1.0), math.inf),
        ((-1.0, 1.0, 0.0), math.inf),
        ((2.0, -1.0, 1.0), 3000.0),
        ((-1.0, math.nan, 1.0), math.nan),
    ],
)
def test_the_turning_point_is_the_last_one_and_linear_between_contexts(
    gains: tuple[float, ...], expected: float
) -> None:
    found = turning_point((1000, 2000, 4000), gains)
    assert found == pytest.approx(expected, nan_ok=True)


@given(
    base=st.floats(1, 50),
    slope=st.floats(1e-4, 1e-2),
    share=st.floats(0, 0.95),
    crossing=st.integers(600, 8000),
)
def test_times_linear_in_the_context_cross_where_the_lines_do(
    base: float, slope: float, share: float, crossing: int
) -> None:
    """Baseline: base + slope·C. The format has a part of that slope, and the same time at the crossing."""
    contexts = [512, 2048, 8192]
    own = [base + slope * crossing + share * slope * (context - crossing) for context in contexts]
    gains = [base + slope * context - time for context, time in zip(contexts, own)]
    assert turning_point(contexts, gains) == pytest.approx(crossing, rel=1e-6)


def speed_rows(format: str, ratios: tuple[float, ...], engine: str = "native-v3", wide: float = 0.1) -> list:
    """At 1000, 2000 and 4000 tokens, with a baseline of 40 ms."""
    return [
        speed_row(
            format,
            context,
            engine=engine,
            values={"ratio_to_baseline": ratio, "ratio_low": ratio - wide, "ratio_high": ratio + wide},
        )
        for context, ratio in zip((1000, 2000, 4000), ratios)
    ]


def beyond(ax: Axes, label: str) -> list[float]:
    return [float(line.get_xdata()[0]) for line in ax.get_lines() if line.get_gid() == f"beyond:{label}"]


def test_crossover_draws_where_the_ratio_and_its_interval_pass_1() -> None:
    """Gains of the mean: −8, +8 ms; optimistic −4, +12; pessimistic −12, +4."""
    figure = draw(only(speed_rows("int4-head", (1.2, 0.8, 0.5))), "crossover")
    (ax,) = figure.axes
    assert data(lines_of(ax)["int4-head"]) == [(pytest.approx(1500.0), 0.0)]
    (bar,) = [bars for bars in ax.collections if bars.get_gid() == "interval:int4-head"]
    assert bar.get_segments()[0][:, 0] == pytest.approx([1250.0, 1750.0])
    assert beyond(ax, "int4-head") == []
    assert [text.get_text() for text in ax.texts] == ["≈ 1500"]
    assert list(ax.get_xticks()) == [1000, 2000, 4000]


def test_nothing_is_said_beyond_the_measured_contexts() -> None:
    rows = [*speed_rows("int8-head", (0.95, 0.8, 0.5)), *speed_rows("int4-head", (1.4, 1.3, 1.05))]
    (ax,) = draw(only(rows), "crossover").axes
    assert not lines_of(ax)
    assert [text.get_text() for text in ax.texts] == ["at 1000 already", "not by 4000"]
    assert (beyond(ax, "int8-head"), beyond(ax, "int4-head")) == ([1000], [4000])
    ends = {str(bars.get_gid()): bars.get_segments()[0][:, 0].tolist() for bars in ax.collections}
    assert ends["interval:int8-head"] == [1000.0, pytest.approx(1000 + 1000 * 2 / 6)]
    assert ends["interval:int4-head"] == [pytest.approx(2000 + 2000 * 8 / 10), 4000.0]


def test_a_crossover_of_the_reference_engine_is_hollow() -> None:
    figure = draw(only(speed_rows("int4-head", (1.2, 0.8, 0.5), engine="reference")), "crossover")
    assert to_rgba(lines_of(figure.axes[0])["int4-head"].get_markerfacecolor()) == to_rgba("white")
    assert any("hollow marker: PyTorch reference engine" in text for text in legend_labels(figure))


def test_a_single_context_has_no_crossover() -> None:
    assert not can_draw(only([speed_row("int4-head", 512, engine="native-v3")]), "crossover")


def test_rows_are_as_high_as_their_names() -> None:
    long = "k.int8-channel@g32+v.int4-head+r128+s4+l0-3.fp16+l-4--1.int8-head"
    names = ["int8-head", "int4-head", long, "n" * 70, "kivi-2"]
    rows = [speed_row(name, context) for name in names for context in (512, 2048)]
    figure = draw(only(rows), "crossover")
    labels = figure.axes[0].get_yticklabels()
    assert sorted(label.get_text().replace("\n", "") for label in labels) == sorted(names)
    assert "k.int8-channel@g32\n+v.int4-head+r128+s4\n+l0-3.fp16\n+l-4--1.int8-head" in [
        label.get_text() for label in labels
    ]
    boxes = extents(figure, labels)
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))


def test_labels_of_contexts_do_not_collide_beside_long_names() -> None:
    rows = [speed_row("n" * 70, context) for context in (512, 1024, 2048, 4096, 8192)]
    figure = draw(only(rows), "crossover")
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_text()]
    boxes = extents(figure, labels)
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
