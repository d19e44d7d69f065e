"""Quality against size: the points are the rows, the front is what nothing beats in both."""

from __future__ import annotations

import pytest
from drawn import data, legend_labels, lines_of, only
from hypothesis import given
from hypothesis import strategies as st
from rows import quality_row

from quantkv.measurements.quality.front_figure import Point, pareto_front
from quantkv.report.plots import draw


def point_row(format: str, bits: float, kl: float, low: float, high: float, context: int = 512) -> dict:
    values = {"bits_cache_16": bits, "kl_mean": kl, "kl_low": low, "kl_high": high}
    return quality_row(format, context, values=values)


POINTS = {
    "kivi-2": (3.5, 0.1),
    "int4-head": (5.0, 6e-3),
    "kivi-4": (6.0, 6e-3),
    "fp8-e4m3": (9.0, 7e-4),
    "int8-head": (9.0, 2e-5),
}


def test_pareto_draws_bits_kl_and_intervals_at_the_largest_context() -> None:
    rows = [point_row(name, bits, kl, 0.5 * kl, 2 * kl, 2048) for name, (bits, kl) in POINTS.items()]
    (ax,) = draw(only([*rows, point_row("fp16", 16.0, 1e-8, 1e-9, 1e-7, 512)]), "pareto").axes
    assert {name: data(line) for name, line in lines_of(ax).items()} == {
        name: [point] for name, point in POINTS.items()
    }
    (bar,) = [bars for bars in ax.collections if bars.get_gid() == "interval:int4-head"]
    assert bar.get_segments()[0].tolist() == [[5.0, pytest.approx(3e-3)], [5.0, pytest.approx(1.2e-2)]]
    assert ax.get_xlabel().startswith("cache bits per element at 2048 tokens\n(bits_cache_16")


def test_a_point_is_the_mean_over_seeds() -> None:
    found = [point_row("int4-head", bits, kl, kl, kl) for bits, kl in ((5.0, 2e-3), (6.0, 6e-3))]
    found[1]["requested"]["seed"] = 1
    (ax,) = draw(only(found), "pareto").axes
    assert data(lines_of(ax)["int4-head"]) == [(5.5, pytest.approx(4e-3))]


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    """kivi-4 has more bits than int4-head for the same KL; fp8 has the bits of int8-head for more KL."""
    rows = [point_row(name, bits, kl, kl, kl) for name, (bits, kl) in POINTS.items()]
    (ax,) = draw(only(rows), "pareto").axes
    (front,) = [line for line in ax.get_lines() if line.get_gid() == "front"]
    assert data(front) == [POINTS["kivi-2"], POINTS["int4-head"], POINTS["int8-head"]]
    assert front.get_drawstyle() == "steps-post"


@pytest.mark.parametrize("names", [["int8-head"], ["int8-head", "fp8-e4m3", "fp16"]])
def test_a_front_of_one_format_is_drawn_as_the_legend_says(names: list[str]) -> None:
    """int8-head has the least bits and the least KL: all that it beats lies between two lines."""
    places = POINTS | {"fp16": (16.0, 3e-5)}
    figure = draw(only([point_row(name, *places[name], 1e-5, 1e-3) for name in names]), "pareto")
    (ax,) = figure.axes
    (front,) = [line for line in ax.get_lines() if line.get_gid() == "front"]
    bits, kl = places["int8-head"]
    assert data(front) == [(bits, ax.get_ylim()[1]), (bits, kl), (ax.get_xlim()[1], kl)]
    assert "Pareto front of the means" in legend_labels(figure)


@given(st.lists(st.tuples(st.floats(1, 32), st.floats(-1e-9, 10)), min_size=1, max_size=12))
def test_every_format_is_on_the_front_or_beaten_by_one_that_is(places: list[tuple[float, float]]) -> None:
    found = [Point(str(i), bits, kl, kl, kl) for i, (bits, kl) in enumerate(places)]
    front = pareto_front(found)

    def beats(one: Point, other: Point) -> bool:
        mine, others = (one.bits, max(one.kl, 0)), (other.bits, max(other.kl, 0))
        return mine != others and mine[0] <= others[0] and mine[1] <= others[1]

    assert not any(beats(other, point) for point in front for other in found)
    for point in set(found) - set(front):
        same = (point.bits, max(point.kl, 0))
        assert any(beats(other, point) or (other.bits, max(other.kl, 0)) == same for other in front)
