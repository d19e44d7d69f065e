"""Figures draw what the rows hold, hide nothing, cut nothing off, and are the same bytes each time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from drawn import data, extents, legend_labels, lines_of, only, overlap
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from rows import (
    BASELINE_MS,
    BYTES_16_PER_TOKEN,
    KL,
    failed_row,
    held_bytes,
    memory_row,
    quality_row,
    speed_row,
    sweep_rows,
)

from quantkv.drawing.figure import rendered
from quantkv.drawing.style import FONT_SIZE, STYLES, WIDTHS
from quantkv.errors import QuantKVError
from quantkv.report.figures import of_studies
from quantkv.report.plots import can_draw, draw

FIGURES = of_studies()
FORMATS = ["fp16", "fp8-e4m3", "int8-channel", "int8-head", "int4-head", "kivi-4", "kivi-2"]


LONG = "k.int8-channel@g32+v.int4-head+r128+s4+l0-3.fp16+l-4--1.int8-head"
BY_CONTEXT = [name for name in FIGURES if name not in ("pareto", "crossover")]
"""Those with contexts, or offsets, along the axis."""


@pytest.mark.parametrize("name", [name for name in BY_CONTEXT if name != "overview"])
def test_one_line_per_format(name: str) -> None:
    (ax,) = draw(only(sweep_rows()), name).axes
    expected = FORMATS if name in ("ppl_ratio", "kl", "kl_by_position") else ["DynamicCache", *FORMATS]
    assert list(lines_of(ax)) == expected
    places = [*range(8, 128, 16)] if name == "kl_by_position" else [512, 2048, 4096]
    assert all(list(line.get_xdata()) == places for line in lines_of(ax).values())


def test_memory_draws_held_predicted_and_the_16_bit_cache() -> None:
    (ax,) = draw(only(sweep_rows()), "memory").axes
    expected = [(c, pytest.approx(held_bytes("int4-head", c) / 2**20)) for c in (512, 2048, 4096)]
    assert data(lines_of(ax)["int4-head"]) == expected
    assert data(lines_of(ax, "predicted:")["int4-head"]) == expected
    (yardstick,) = [line for line in ax.get_lines() if line.get_gid() == "16-bit"]
    assert data(yardstick) == [(c, pytest.approx(BYTES_16_PER_TOKEN * c / 2**20)) for c in (512, 2048, 4096)]


def test_kl_draws_means_and_interval_bars() -> None:
    (ax,) = draw(only(sweep_rows()), "kl").axes
    expected = [KL["kivi-4"] * (c / 512) ** 0.2 for c in (512, 2048, 4096)]
    assert [y for _, y in data(lines_of(ax)["kivi-4"])] == pytest.approx(expected)
    (bars,) = [bars for bars in ax.collections if bars.get_gid() == "interval:kivi-4"]
    ends = [[y for _, y in segment] for segment in bars.get_segments()]
    assert ends == [pytest.approx([0.8 * kl, 1.25 * kl]) for kl in expected]
    assert ax.get_yscale() == "log"


def test_perplexity_ratio_and_its_interval() -> None:
    values = {"ppl_ratio": 1.01, "delta_nll_low": 0.006, "delta_nll_high": 0.014}
    (ax,) = draw(only([quality_row("int4-head", 512, values=values)]), "ppl_ratio").axes
    assert data(lines_of(ax)["int4-head"]) == [(512, 1.01)]
    (bars,) = [bars for bars in ax.collections if bars.get_gid() == "interval:int4-head"]
    assert bars.get_segments()[0][:, 1] == pytest.approx(np.exp([0.006, 0.014]))


def test_perplexity_ratios_of_one_order_are_linear_and_of_several_are_not() -> None:
    def scale(ratios: tuple[float, ...]) -> str:
        values = [{"ppl_ratio": ratio, "delta_nll_low": -0.1, "delta_nll_high": 0.1} for ratio in ratios]
        rows = [quality_row(name, 512, values=value) for name, value in zip(FORMATS, values)]
        (ax,) = draw(only(rows), "ppl_ratio").axes
        return str(ax.get_yscale())

    assert scale((1.0, 1.004, 1.01, 1.02)) == "linear"
    assert scale((1.0, 1.0005, 1.001, 1.11)) == "function"


@pytest.mark.parametrize(("lowest", "label"), [(0.9955, "0.993"), (0.985, "0.99"), (0.9975, "0.996")])
def test_a_scale_around_1_is_named_and_labelled_to_its_ends(lowest: float, label: str) -> None:
    ratios = (1.0, 1.0005, 1.001, 1.11)
    values = [{"ppl_ratio": ratio, "delta_nll_low": np.log(lowest)} for ratio in ratios]
    figure = draw(only([quality_row(n, 512, values=v) for n, v in zip(FORMATS, values)]), "ppl_ratio")
    (ax,) = figure.axes
    labels = [text for text in ax.get_yticklabels() if text.get_text()]
    assert ax.get_ylabel() == "perplexity ratio\n(symlog around 1)" and labels[0].get_text() == label
    assert not any(overlap(*pair) for pair in itertools.combinations(extents(figure, labels), 2))


def test_a_circle_leaves_a_square_of_the_same_bits_visible() -> None:
    for bits in (8, 4):
        assert STYLES[f"int{bits}-channel"].size > STYLES[f"int{bits}-head"].size


def test_tokens_per_second_of_a_batch() -> None:
    values = {
        "decode_ms_median": 50.0,
        "decode_tokens_per_s": 80.0,
        "decode_ms_p10": 40.0,
        "decode_ms_p90": 80.0,
    }
    (ax,) = draw(only([speed_row("int4-head", 512, values=values, batch=4)]), "decode_tps").axes
    assert data(lines_of(ax)["int4-head"]) == [(512, 80.0)]
    (bars,) = [bars for bars in ax.collections if bars.get_gid() == "interval:int4-head"]
    assert bars.get_segments()[0][:, 1] == pytest.approx([50.0, 100.0])


def test_baseline_without_rows_of_its_own_comes_from_the_interleaved_medians() -> None:
    rows = [row for row in sweep_rows() if row["requested"]["format"] != "dynamic"]
    (ax,) = draw(only(rows), "decode_ms").axes
    assert data(lines_of(ax)["DynamicCache"]) == [(c, BASELINE_MS[c]) for c in (512, 2048, 4096)]


def test_values_of_several_seeds_are_averaged() -> None:
    rows = [
        quality_row("int4-head", 512, values={"kl_mean": kl}, seed=seed)
        for seed, kl in enumerate((0.004, 0.008))
    ]
    (ax,) = draw(only(rows), "kl").axes
    assert data(lines_of(ax)["int4-head"]) == [(512, pytest.approx(0.006))]


def test_reference_engine_is_hollow_and_the_legend_says_so() -> None:
    rows = [
        speed_row("int4-head", 512),
        speed_row("int8-head", 512, engine="native"),
        speed_row("dynamic", 512),
    ]
    figure = draw(only(rows), "decode_ms")
    faces = {label: to_rgba(line.get_markerfacecolor()) for label, line in lines_of(figure.axes[0]).items()}
    assert faces["int4-head"] == to_rgba("white")
    assert faces["int8-head"] == to_rgba(STYLES["int8-head"].color)
    assert faces["DynamicCache"] == to_rgba(STYLES["DynamicCache"].color)
    assert any("hollow marker: PyTorch reference engine" in text for text in legend_labels(figure))


def test_quality_of_the_reference_engine_is_not_hollow() -> None:
    figure = draw(only(sweep_rows()), "kl")
    assert to_rgba(lines_of(figure.axes[0])["int4-head"].get_markerfacecolor()) == to_rgba(
        STYLES["int4-head"].color
    )
    assert not any("hollow" in text for text in legend_labels(figure))


def test_a_failed_cell_is_a_cross_on_the_edge_and_no_value() -> None:
    rows = [row for row in sweep_rows() if row["key"] != "memory-smollm2-135m-instruct-q4_1-kivi-2-4096-1-0"]
    figure = draw(only([*rows, failed_row("memory", "kivi-2", 4096, "out of memory")]), "memory")
    (ax,) = figure.axes
    assert [x for x, _ in data(lines_of(ax)["kivi-2"])] == [512, 2048]
    cross = lines_of(ax, "failed:")["kivi-2"]
    figure.draw_without_rendering()
    x, y = cross.get_transform().transform((4096, 0.0))
    assert y == pytest.approx(ax.get_window_extent().y0)
    assert x == pytest.approx(ax.transData.transform((4096, 10))[0], abs=10)
    assert "cell failed or skipped" in legend_labels(figure)


def test_kl_of_zero_stands_on_the_lower_edge_and_is_explained() -> None:
    rows = [quality_row("fp16", 512, values={"kl_mean": 0.0, "kl_low": None, "kl_high": None})]
    figure = draw(only([*rows, quality_row("int4-head", 512)]), "kl")
    (ax,) = figure.axes
    assert data(lines_of(ax)["fp16"]) == [(512, pytest.approx(ax.get_ylim()[0]))]
    assert "on the lower edge: KL of 0 within rounding" in legend_labels(figure)


def test_a_floor_near_the_data_is_a_line_and_a_far_one_a_note() -> None:
    near = draw(
        only([quality_row("int4-head", c, values={"floor_path_kl": 2e-4}) for c in (512, 1024)]), "kl"
    )
    far = draw(
        only([quality_row("int4-head", c, values={"floor_path_kl": 1e-10}) for c in (512, 1024)]), "kl"
    )
    assert [data(line) for line in near.axes[0].get_lines() if line.get_gid() == "floor"] == [
        [(512, 2e-4), (1024, 2e-4)]
    ]
    assert not [line for line in far.axes[0].get_lines() if line.get_gid() == "floor"]
    one = draw(only([quality_row("int4-head", 512, values={"floor_path_kl": 2e-4})]), "kl")
    (line,) = (line for line in one.axes[0].get_lines() if line.get_gid() == "floor")
    assert data(line) == [(0, 2e-4), (1, 2e-4)], "one length: from edge to edge, as one point draws no line"
    assert "KL floor of the code path: 1e−10, below the axis" in legend_labels(far)
    arrows = [[line.get_gid() for line in figure.axes[0].get_lines()] for figure in (near, far)]
    assert ["floor below" in names for names in arrows] == [False, True]


@pytest.mark.parametrize("width", list(WIDTHS))
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("long", [LONG, "m" * 150])
def test_legend_lies_outside_the_axes_and_everything_inside_the_figure(
    name: str, width: str, long: str
) -> None:
    rows = [*sweep_rows(), *(make(long, c) for make in (memory_row, speed_row) for c in (2048, 4096))]
    rows.append(quality_row(long, 4096, values={"positions": rows[2]["quality"]["positions"]}))
    figure = draw(only(rows), name, width=width)
    axes = [ax.get_tightbbox() for ax in figure.axes]
    legends = extents(figure, list(figure.legends))
    assert legends
    assert name == "crossover" or long in [label.replace("\n", "") for label in legend_labels(figure)]
    assert not any(overlap(one, other) for one, other in itertools.product(axes, legends))
    assert not any(overlap(one, other) for one, other in itertools.combinations(legends, 2))
    for box in (*axes, *legends):
        assert box.x0 >= -0.5 and box.y0 >= -0.5
        assert box.x1 <= figure.bbox.width + 0.5 and box.y1 <= figure.bbox.height + 0.5
    assert figure.get_figwidth() == WIDTHS[width]


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_readable_in_print(name: str) -> None:
    figure = draw(only(sweep_rows()), name)
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    assert min(text.get_fontsize() for text in shown) >= 7.0 == FONT_SIZE


@pytest.mark.parametrize("contexts", [(512, 2048, 4096), (512, 600, 1024), tuple(2**k for k in range(9, 18))])
def test_ticks_are_the_measured_contexts_and_their_labels_do_not_collide(contexts: tuple[int, ...]) -> None:
    figure = draw(only([quality_row("int4-head", context) for context in contexts]), "kl")
    (ax,) = figure.axes
    assert list(ax.get_xticks()) == list(contexts)
    labels = [label for label in ax.get_xticklabels() if label.get_text()]
    assert labels[-1].get_text() in (str(contexts[-1]), f"{contexts[-1] // 1024}k")
    boxes = extents(figure, labels)
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))


def test_coinciding_formats_are_drawn_side_by_side() -> None:
    rows = [
        memory_row(name, c, values={"held_bytes": 4_000_000})
        for name in ("int8-head", "int4-head")
        for c in (512, 1024)
    ]
    figure = draw(only([*rows, memory_row("kivi-2", 512, values={"held_bytes": 2_000_000})]), "memory")
    figure.draw_without_rendering()
    (ax,) = figure.axes
    places = {name: line.get_transform().transform((512, 10.0))[0] for name, line in lines_of(ax).items()}
    assert abs(places["int8-head"] - places["int4-head"]) >= 2.0 * figure.dpi / 72
    assert places["kivi-2"] == pytest.approx(ax.transData.transform((512, 10.0))[0])


@pytest.mark.parametrize("kinds", [("quality",), ("speed",), ("memory",), ("quality", "memory")])
def test_overview_shows_the_panels_there_are_numbers_for(kinds: tuple[str, ...]) -> None:
    figure = draw(only([row for row in sweep_rows() if row["kind"] in kinds]), "overview", width="two-column")
    panels = {"quality": 2, "speed": 1, "memory": 1}
    assert len(figure.axes) == sum(panels[kind] for kind in kinds)


def test_figures_without_numbers_cannot_be_drawn() -> None:
    study = only([quality_row("int4-head", 512), failed_row("memory", "int4-head", 512, "killed")])
    assert {name for name in FIGURES if can_draw(study, name)} == {"pareto", "ppl_ratio", "kl", "overview"}


@pytest.mark.parametrize("name", BY_CONTEXT)
def test_one_context_is_enough(name: str) -> None:
    figure = draw(only(sweep_rows(contexts=(2048,))), name)
    assert list(figure.axes[0].get_xticks()) == ([0, 32, 64, 96] if name == "kl_by_position" else [2048])


@pytest.mark.long("writes six files of a large figure")
def test_files_embed_fonts_carry_no_date_and_repeat_byte_for_byte() -> None:
    few = sweep_rows((512, 2048), ("fp16", "int4-head", "kivi-2"))
    first, again = (draw(only(rows), "overview") for rows in (few, few[::-1]))
    for kind in ("png", "svg", "pdf"):
        pdf = rendered(first, kind)
        assert pdf == rendered(again, kind)
    assert b"/Type3" not in pdf and b"/FontFile2" in pdf
    assert b"CreationDate" not in pdf and b"ModDate" not in pdf


@pytest.mark.parametrize(
    ("arguments", "legal"), [(("kll", "one-column"), "memory, decode_ms"), (("kl", "a4"), "one-column")]
)
def test_unknown_figures_and_widths_name_the_legal_ones(arguments: tuple[str, str], legal: str) -> None:
    with pytest.raises(QuantKVError, match=legal):
        draw(only(sweep_rows()), arguments[0], width=arguments[1])


@pytest.mark.parametrize("name", ["decode_ms", "decode_tps", "crossover", "overview"])
def test_a_context_whose_bandwidth_drifted_is_marked_and_explained(name: str) -> None:
    steady, drifting = ({"bandwidth_drift": drift} for drift in (0.02, 0.4))
    rows = [speed_row("fp16", 512, values=steady), speed_row("fp16", 2048, values=drifting)]
    figure = draw(only(rows), name)
    marks = [line for line in figure.axes[0].get_lines() if str(line.get_gid()).startswith("drift:")]
    assert [list(line.get_xdata()) for line in marks] == [[2048]]
    assert "memory bandwidth drifted while timing" in legend_labels(figure)
    rows[1]["speed"]["bandwidth_drift"] = 0.02
    assert "memory bandwidth drifted while timing" not in legend_labels(draw(only(rows), name))
