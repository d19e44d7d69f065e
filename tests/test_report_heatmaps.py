"""Heat maps of many formats go on below each other, with every label readable."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import pytest
from drawn import extents, overlap
from matplotlib.figure import Figure

from quantkv.drawing.style import WIDTHS
from quantkv.measurements.inside.figures import error_figure
from quantkv.measurements.retrieval.needle_figure import needle_figure
from quantkv.studies.groups import groups

LONG = "k.int8-channel@g32+v.int4-head+r128+s4+l0-3.fp16+l-4--1.int8-head"
FORMATS = ("fp16", "int8-channel", "int8-head", "int4-head", "kivi-4", "kivi-2", LONG)


def retrieval_row(format: str, context: int, hits: int) -> dict[str, Any]:
    depths = [{"depth": depth, "n": 8, "hits": hits, "hits_ref": 8} for depth in (0.05, 0.5, 0.95)]
    asked = {"model": "m", "dtype": "float32", "format": format, "context": context, "seed": 0}
    scores = {"depths": depths, "conclusive": True}
    return {
        "kind": "retrieval",
        "status": "ok",
        "requested": asked,
        "protocol": {"task": "passkey"},
        "retrieval": scores,
    }


def labels(figure: Figure) -> list[Any]:
    found = [ax.title for ax in figure.axes]
    found += [label for ax in figure.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    return [label for label in found if label.get_visible() and label.get_text()]


def test_needles_of_many_formats_wrap_and_no_label_lies_on_another() -> None:
    rows = [
        retrieval_row(format, context, hits)
        for hits, format in enumerate(FORMATS)
        for context in (512, 1024, 2048, 4096)
    ]
    (group,) = groups(rows, "retrieval")
    figure = needle_figure(group)
    panels = [ax for ax in figure.axes if ax.images]
    assert figure.get_figwidth() == WIDTHS["two-column"]
    assert [ax.get_title().replace("\n", "") for ax in panels] == ["exact cache", *FORMATS]
    shares = [ax.images[0].get_array().ravel().tolist() for ax in panels]
    assert shares == [[1.0] * 12, *([hits / 8] * 12 for hits in range(len(FORMATS)))]
    boxes = extents(figure, labels(figure))
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width + 0.5 for box in boxes)


def test_a_format_without_a_length_leaves_its_cells_empty() -> None:
    rows = [
        retrieval_row("int4-head", 512, 4),
        retrieval_row("int4-head", 1024, 2),
        retrieval_row("kivi-2", 512, 1),
    ]
    (group,) = groups(rows, "retrieval")
    _, _, kivi = (ax.images[0].get_array() for ax in needle_figure(group).axes[:3])
    assert kivi.tolist() == [[0.125, None]] * 3


def test_one_length_is_a_map_of_formats_and_depths() -> None:
    """Panels of one column would be bars."""
    rows = [retrieval_row(format, 1024, hits) for hits, format in enumerate(FORMATS)]
    rows[1]["retrieval"]["depths"].pop()
    (group,) = groups(rows, "retrieval")
    figure = needle_figure(group)
    (ax,) = [ax for ax in figure.axes if ax.images]
    names = [label.get_text().replace("\n", "") for label in ax.get_yticklabels()]
    assert ax.get_title() == "passkey" and names == ["exact cache", *FORMATS]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.05", "0.5", "0.95"]
    shares = [[1.0] * 3, *([hits / 8] * 3 for hits in range(len(FORMATS)))]
    shares[2][2] = None
    assert ax.images[0].get_array().tolist() == shares
    said = {text.get_gid(): text.get_text() for text in ax.texts}
    assert said["share:0,0"] == "100 %" and said["share:4,1"] == "38 %" and "share:2,2" not in said
    assert figure.get_supxlabel() == "depth at 1024 tokens of context"
    boxes = extents(figure, labels(figure))
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))


def test_tasks_of_one_length_stand_beside_each_other() -> None:
    rows = [retrieval_row("int4-head", 512, 4) for _ in range(5)]
    for index, row in enumerate(rows):
        row["protocol"] = {"task": f"task {index}"}
    (group,) = groups(rows, "retrieval")
    panels = [ax for ax in needle_figure(group).axes if ax.images]
    assert [ax.get_title() for ax in panels] == [f"task {index}" for index in range(5)]


@pytest.mark.parametrize("conclusive", [True, False])
def test_hatches_are_explained_where_there_are_any(conclusive: bool) -> None:
    row = retrieval_row("int4-head", 512, 4)
    row["retrieval"]["conclusive"] = conclusive
    (group,) = groups([row], "retrieval")
    figure = needle_figure(group)
    assert ("hatched" in figure.get_supxlabel()) is not conclusive
    assert bool(figure.axes[0].patches) is not conclusive


def test_names_of_layer_maps_do_not_touch() -> None:
    errors = pd.DataFrame(
        [
            {
                "format": name,
                "layer": layer,
                "head": 0,
                "key_error": 0.1,
                "value_error": 0.2,
                "output_error": 0.01,
            }
            for name in (LONG, LONG + "+s0", "int4-head")
            for layer in range(4)
        ]
    )
    figure = error_figure(errors)
    boxes = extents(figure, [ax.title for ax in figure.axes if ax.get_title()])
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
